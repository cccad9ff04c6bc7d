"""Loads batches onto a device: the next one is collated and copied while the device computes on
this one.

On the CPU all of it happens in this process when a batch is asked for. On an accelerator, torch's
DataLoader collates in worker processes and pins the memory of batches, so that copying does not
hold up the CPU.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader

from cudt.data.batching import Batch, Collates, collated, to_device
from cudt.utils.errors import UserError
from cudt.utils.transfer import can_pin

#: The number of worker processes, or auto: none on the CPU, two on an accelerator.
Workers = int | Literal["auto"]
_AUTO = 2
#: The path of a socket has 107 bytes at most; Python adds pymp-… and listener-… to it.
_LONGEST_FOLDER = 107 - len("/pymp-12345678/listener-12345678")
#: One of several processes' part of the work: its number, and their number.
Share = tuple[int, int]
ALL: Share = (0, 1)
#: Threads of `ahead`, and items that they prepare before these are asked for.
AHEAD = 6
Item = TypeVar("Item")
Made = TypeVar("Made")


class Loader:
    """Batches of a task's examples on a device; its worker processes live as long as it does."""

    def __init__(
        self,
        task: Collates,
        examples: Sequence[Any],
        device: torch.device,
        workers: Workers = "auto",
    ) -> None:
        count = n_workers(workers, device)
        self._device = device
        self._groups: list[list[int]] = []
        self._loader: DataLoader[Any] = DataLoader(
            range(len(examples)),  # type: ignore[arg-type]  # a sequence is all that it needs
            batch_sampler=self._groups,
            collate_fn=partial(_collated_or_error, task, examples),
            num_workers=count,
            persistent_workers=count > 0,
            # Forked, because tasks cannot always be pickled.
            multiprocessing_context="fork" if count else None,
            worker_init_fn=_begin_worker,
            pin_memory=can_pin(device),
            # Without a generator of its own it would draw from torch's global one, which dropout
            # uses.
            generator=torch.Generator(),
        )

    def load(self, groups: Iterable[Iterable[int]]) -> Iterator[Batch]:
        """A batch of each group of examples, given by their indices, in order."""
        self._groups[:] = [[int(index) for index in group] for group in groups]
        batches = (to_device(_or_raise(made), self._device) for made in self._loader)
        return batches if self._device.type == "cpu" else _one_ahead(batches)


def n_workers(asked: Workers, device: torch.device) -> int:
    """The number of worker processes; none where processes cannot be forked."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return 0
    return (0 if device.type == "cpu" else _AUTO) if asked == "auto" else asked


def batches(
    task: Collates,
    examples: Sequence[Any],
    size: int,
    device: torch.device,
    workers: Workers = "auto",
    share: Share = ALL,
) -> Iterator[Batch]:
    """All examples once, longest first: little padding, and a batch too large for memory fails at
    once.

    With `share`, only those of one process.
    """
    # Sorting is stable in reverse, too: examples of equal length keep their order.
    order = sorted(
        range(len(examples)), key=lambda index: task.length(examples[index]), reverse=True
    )
    groups = shared([order[start : start + size] for start in range(0, len(order), size)], share)
    # Starting processes takes longer than collating one batch.
    loader = Loader(
        task, examples, device, min(n_workers(workers, device), max(0, len(groups) - 1))
    )
    return loader.load(groups)


def shared(items: Sequence[Item], share: Share) -> list[Item]:
    """Items i, i + n, i + 2n, … for the share (i, n).

    Each of the n processes gets as many, because processes that share their weights compute
    together: where none is left, it is the last item again.
    """
    first, step = share
    return [*items, *[*items[-1:]] * (-len(items) % step)][first::step]


def ahead(
    items: Iterable[Item], prepare: Callable[[Item], Made], device: torch.device
) -> Iterator[Made]:
    """`prepare(item)` of each item, in order; for an accelerator, by six threads that are six items
    ahead.

    torch's random numbers are drawn without holding Python's lock, so the threads do not hold up
    this one. The items are made by this thread: they may need the model, which others must not run
    at the same time.
    """
    if device.type == "cpu":
        yield from map(prepare, items)
        return
    remaining = iter(items)
    with ThreadPoolExecutor(AHEAD, "ahead") as threads:
        waiting = deque(
            threads.submit(prepare, item) for item in itertools.islice(remaining, AHEAD)
        )
        while waiting:
            waiting.extend(threads.submit(prepare, item) for item in itertools.islice(remaining, 1))
            yield waiting.popleft().result()


def _collated_or_error(
    task: Collates, examples: Sequence[Any], indices: Sequence[int]
) -> Batch | UserError | OSError | MemoryError:
    """A batch; expected errors as a value, because torch raises a worker's error with its traceback
    as the text.
    """
    try:
        return collated(task, [examples[index] for index in indices])
    except (UserError, OSError, MemoryError) as error:
        return error


def _or_raise(made: Batch | UserError | OSError | MemoryError) -> Batch:
    if isinstance(made, Exception):
        raise made
    return made


def _one_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches; the next one is on its way to the device while one is in use."""
    waiting: deque[Batch] = deque()
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting


def _begin_worker(worker: int) -> None:
    """Prepare a worker process."""
    _own_temporary_folder()
    _outlive_a_stop()


def _own_temporary_folder() -> None:
    """Let torch's sockets be in a folder that is deleted with the worker."""
    with contextlib.suppress(OSError):
        temporary = tempfile.mkdtemp(prefix="cudt-")
        # After the folder in it, which has a higher priority.
        Finalize(None, shutil.rmtree, (temporary, True), exitpriority=-200)
        if len(temporary) <= _LONGEST_FOLDER:
            tempfile.tempdir = temporary


def _outlive_a_stop() -> None:
    """Let a worker go on after a stop signal that reached all processes: the main one finishes its
    update with it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        # Not ignored: the main process ends its workers by SIGTERM, and would wait for them for
        # ever.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
        pass
    os._exit(0)
