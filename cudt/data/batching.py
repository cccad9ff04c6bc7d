"""Batches of examples, and which examples share one in training (by seed and epoch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cudt.utils.transfer import sent

#: Tensors by name, padded to one length; `ids`, which determine the noise of each example; for
#: texts also TOKEN_COUNTS.
Batch = dict[str, Any]
#: The number of tokens of each text of a loaded batch. With a dot, so that no task has a tensor of
#: that name.
TOKEN_COUNTS = "cudt.token_counts"
#: Updates that are sorted together when training groups by length; with more, a whole epoch would
#: be sorted by length.
_POOL = 50


class Collates(Protocol):
    """The part of a task that batching needs."""

    def length(self, example: Any) -> int: ...
    def collate(self, examples: Sequence[Any]) -> Batch: ...


def collated(task: Collates, examples: Sequence[Any]) -> Batch:
    """A batch of some examples on the CPU; of texts, with the number of tokens of each
    (`lengths_of`).
    """
    batch = task.collate(examples)
    # Counted now: once the mask is on an accelerator, counting means waiting for it.
    return {**batch, TOKEN_COUNTS: lengths_of(batch)} if "attention_mask" in batch else batch


def lengths_of(batch: Batch) -> list[int]:
    """The number of tokens of each text of a batch, without padding."""
    return batch[TOKEN_COUNTS] if TOKEN_COUNTS in batch else batch["attention_mask"].sum(1).tolist()


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on a device; the CPU does not wait until they are there."""
    return {
        key: sent(value, device) if isinstance(value, Tensor) else value
        for key, value in batch.items()
    }


def n_batches(examples: Sequence[Any], size: int) -> int:
    return -(-len(examples) // size)


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
    """The examples of each micro-batch of some updates: one process's share of each, split for
    accumulation.
    """
    shares = (indices[process::n_processes] for indices in updates)
    return [part for share in shares for part in np.array_split(share, accumulation)]
