"""Several processes that do one command's work together: which one this is, and what they send each
other.

A launcher (torchrun, accelerate launch, or srun with these variables) starts the same command
several times and sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Process 0 is the
main one: it prints and writes files. All functions here also work in a process that is alone, where
they do nothing and torch is not imported. A process that fails ends alone, and the launcher ends
the others.

Gradients and losses go through torch's default group, on the accelerator if there is one.
Everything else goes through a second group, over gloo, in which a process may wait for another as
long as that takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from cudt.utils.errors import UserError

Value = TypeVar("Value")
#: How long a process waits for the others in an update; then torch raises an error.
PATIENCE = timedelta(minutes=10)
#: As long as another process may prepare data, or wait for the lock of a run.
_FOR_EVER = timedelta(days=30)
#: What launchers set, and Accelerate reads. Some of it is also set where every process works alone,
#: as by srun.
_LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)

#: The group for everything but gradients and losses.
_group: Any = None


def count() -> int:
    """The number of processes that work together."""
    return max(1, _number("WORLD_SIZE", 1))


def index() -> int:
    """The number of this process; the main one is 0."""
    return _number("RANK", 0) if count() > 1 else 0


def local_index() -> int:
    """The number of this process among those on the same machine."""
    return _number("LOCAL_RANK", _number("SLURM_LOCALID", index()))


def is_main_process() -> bool:
    """Whether this process prints and writes files."""
    return index() == 0


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default


@contextmanager
def not_launched() -> Iterator[None]:
    """Hide what launchers set from Accelerate, for a process that is alone although some of it is
    set.
    """
    hidden = {name: os.environ.pop(name) for name in _LAUNCHERS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def join() -> None:
    """Connect the processes that were launched together; the first call waits for all of them."""
    global _group
    if count() == 1 or _group is not None:
        return
    import torch.distributed as dist

    # Accelerate asks for it, and not every launcher sets it.
    os.environ["LOCAL_RANK"] = str(local_index())
    try:
        # Without a backend: gloo for the CPU and, if there is an accelerator, its own for that.
        dist.init_process_group(timeout=PATIENCE)
        _group = dist.new_group(backend="gloo", timeout=_FOR_EVER)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"WORLD_SIZE={count()} is set, but the processes did not connect "
            f"({str(error).strip()}); start all of them "
            "with torchrun or accelerate launch, or run `unset RANK WORLD_SIZE` to train in one "
            "process"
        ) from None


def leave() -> None:
    """Disconnect; for the end of a command in which nothing went wrong."""
    global _group
    if _group is not None:
        import torch.distributed as dist

        dist.destroy_process_group()
        _group = None


def gathered(value: Value) -> list[Value]:
    """The values of all processes, in their order."""
    if count() == 1:
        return [value]
    join()
    import torch.distributed as dist

    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value, group=_group)
    return values


def from_main(value: Value) -> Value:
    """The value of the main process; the others' values are not used."""
    if count() == 1:
        return value
    join()
    import torch.distributed as dist

    values = [value if is_main_process() else None]
    dist.broadcast_object_list(values, src=0, group=_group)
    return values[0]  # type: ignore[return-value]


def wait() -> None:
    """Wait until all processes are here."""
    gathered(None)


def in_order(mine: Sequence[Value], total: int) -> list[Value]:
    """All `total` items in every process, where process i of n has items i, i + n, i + 2n, … and
    all have as many.
    """
    return [item for one in zip(*gathered(mine), strict=True) for item in one][:total]


@contextmanager
def first_on_each_machine() -> Iterator[None]:
    """The first process of each machine goes through the block before the others, which find its
    files in the cache.
    """
    is_first = local_index() == 0
    if not is_first:
        wait()
    yield
    if is_first:
        wait()
