"""Batches: which examples share one in training (by seed and epoch), and loading them onto a
device.

On the CPU a batch is collated when it is asked for. For an accelerator, torch's DataLoader collates
in worker processes and pins memory, so that copies do not hold up the CPU.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from cudt.utils.device import can_pin, sent

#: Tensors by name, padded to one length; `ids`, which determine the noise of each example; for
#: texts also TOKEN_COUNTS.
Batch = dict[str, Any]
#: The number of worker processes, or auto: none on the CPU, two on an accelerator.
Workers = int | Literal["auto"]
#: One of several processes' part of the work: its number, and their number.
Share = tuple[int, int]
ALL: Share = (0, 1)
#: The number of tokens of each text of a loaded batch.
TOKEN_COUNTS = "cudt.token_counts"
#: Updates that are sorted together when training groups by length; with more, a whole epoch would
#: be sorted by length.
_POOL = 50
Item = TypeVar("Item")


def updates(
    n_examples: int, size: int, generator: np.random.Generator, lengths: Sequence[int] | None = None
) -> np.ndarray[Any, Any]:
    """The indices of the examples of each update of an epoch, (updates, size), in random order; the
    rest is not used.

    With `lengths`, examples of similar length share an update: the random order is cut into pools
    of 50 updates, each pool is sorted by length, and the updates are shuffled again.
    """
    count = n_examples // size
    order = generator.permutation(n_examples)[: count * size]
    if lengths is None:
        return order.reshape(count, size)
    pools = np.split(order, range(_POOL * size, len(order), _POOL * size))
    by_length = [pool[np.argsort(np.asarray(lengths)[pool], kind="stable")] for pool in pools]
    return generator.permutation(np.concatenate(by_length).reshape(count, size))


def split_updates(
    updates: np.ndarray[Any, Any], accumulation: int, process: int, n_processes: int
) -> list[np.ndarray[Any, Any]]:
    """The micro-batches of one process: its share of each update, split for accumulation."""
    shares = (indices[process::n_processes] for indices in updates)
    return [part for share in shares for part in np.array_split(share, accumulation)]


class Loader:
    """Batches of a task's examples on a device; its worker processes live as long as it does."""

    def __init__(
        self, task: Any, examples: Sequence[Any], device: torch.device, workers: Workers
    ) -> None:
        count = _n_workers(workers, device)
        self._device = device
        self._groups: list[list[int]] = []
        self._loader: DataLoader[Any] = DataLoader(
            range(len(examples)),  # type: ignore[arg-type]  # a sequence is all that it needs
            batch_sampler=self._groups,
            collate_fn=partial(_collated, task, examples),
            num_workers=count,
            persistent_workers=count > 0,
            # Forked, because tasks cannot always be pickled.
            multiprocessing_context="fork" if count else None,
            worker_init_fn=_ignore_ctrl_c,
            pin_memory=can_pin(device),
            # Without its own it would draw from torch's global generator, which dropout uses.
            generator=torch.Generator(),
        )

    def load(self, groups: Iterable[Iterable[int]]) -> Iterator[Batch]:
        """A batch of each group of examples, given by their indices, in order."""
        self._groups[:] = [[int(index) for index in group] for group in groups]
        return (to_device(batch, self._device) for batch in self._loader)


def batches(
    task: Any,
    examples: Sequence[Any],
    size: int,
    device: torch.device,
    workers: Workers = "auto",
    share: Share = ALL,
) -> Iterator[Batch]:
    """All examples once, or a process's share of them, longest first: little padding, and a batch
    too large for memory fails at once.
    """
    # A stable sort, so that examples of equal length keep their order.
    order = sorted(range(len(examples)), key=lambda index: -task.length(examples[index]))
    groups = shared([order[start : start + size] for start in range(0, len(order), size)], share)
    # Starting processes takes longer than collating one batch.
    count = min(_n_workers(workers, device), max(0, len(groups) - 1))
    return Loader(task, examples, device, count).load(groups)


def n_batches(examples: Sequence[Any], size: int) -> int:
    """How many batches `batches` makes."""
    return -(-len(examples) // size)


def shared(items: Sequence[Item], share: Share) -> list[Item]:
    """Items i, i + n, i + 2n, … for the share (i, n).

    Each of the n processes gets as many, because processes that share their weights compute
    together: where none is left, it is the last item again.
    """
    first, step = share
    return [*items, *[*items[-1:]] * (-len(items) % step)][first::step]


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on a device; the CPU does not wait until they are there."""
    moved = {key: sent(value, device) for key, value in batch.items() if isinstance(value, Tensor)}
    return batch | moved


def _n_workers(asked: Workers, device: torch.device) -> int:
    return (0 if device.type == "cpu" else 2) if asked == "auto" else asked


def _collated(task: Any, examples: Sequence[Any], indices: Sequence[int]) -> Batch:
    """A batch on the CPU; of texts, with the number of tokens of each."""
    batch: Batch = task.collate([examples[index] for index in indices])
    if "attention_mask" in batch:
        # Counted now: once the mask is on an accelerator, counting means waiting for it.
        batch[TOKEN_COUNTS] = batch["attention_mask"].sum(1).tolist()
    return batch


def _ignore_ctrl_c(worker: int) -> None:
    """Leave Ctrl-C to the main process, which still needs its workers to end the update."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
