"""Several processes that do one command's work together: which one this is, and what they send each
other where there is no Accelerator.

A launcher (torchrun, accelerate launch, or srun with these variables) starts the same command
several times and sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Process 0 is the
main one: it prints and writes files. All functions here also work in a process that is alone, where
they do nothing and torch is not imported. A process that fails ends alone, and the launcher ends
the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from cudt.utils.errors import UserError

Value = TypeVar("Value")
#: How long a process waits for the others, of which one may prepare data for hours.
_PATIENCE = timedelta(days=1)
#: What launchers set, and Accelerate reads. Some of it is also set where every process works alone,
#: as by srun.
_LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


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
    if count() == 1:
        return
    import torch.distributed as dist

    # Accelerate asks for it, and not every launcher sets it.
    os.environ["LOCAL_RANK"] = str(local_index())
    try:
        # Without a backend: gloo for the CPU and, if there is an accelerator, its own for that.
        if not dist.is_initialized():
            dist.init_process_group(timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"WORLD_SIZE={count()} is set, but the processes did not connect "
            f"({str(error).strip()}); start all of them with torchrun or accelerate launch, or run "
            "`unset RANK WORLD_SIZE` to use one process"
        ) from None


def leave() -> None:
    """Disconnect; for the end of a command in which nothing went wrong."""
    if count() > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def gathered(value: Value) -> list[Value]:
    """The values of all processes, in their order."""
    if count() == 1:
        return [value]
    join()
    import torch.distributed as dist

    values = [value] * count()
    dist.all_gather_object(values, value)
    return values


def from_main(value: Value) -> Value:
    """The value of the main process; the others' values are not used."""
    return gathered(value)[0]


def wait() -> None:
    """Wait until all processes are here."""
    gathered(None)
