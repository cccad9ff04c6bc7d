"""Several processes that do one command's work together: which one this is, and what they tell each other.

A launcher (torchrun, accelerate launch, or srun with these variables) starts the same command several times and sets
RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Process 0 is the main one: it prints and writes files. All
functions here also work in a process that is alone, where they do nothing and torch is not imported.

Gradients and losses go through torch's default group, on the accelerator if there is one. Everything else goes through
a second group, over gloo, in which a process may wait for another as long as that takes.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from cudt.utils.errors import (
    MACHINE_ERRORS,
    AgreedError,
    AgreedFaultError,
    DataWarning,
    MachineFaultError,
    ProcessLostError,
    UserError,
)

Value = TypeVar("Value")
#: How long a process waits for the others in an update; then it takes them for lost.
PATIENCE = timedelta(minutes=10)
#: As long as another process may prepare data, or wait for the lock of a run.
_FOR_EVER = timedelta(days=30)
#: Seconds after which a process says that it waits for the others to start.
_SILENT = 20.0
#: Seconds after which a file of the main process must be visible to the others; NFS may remember for a minute that a
#: folder did not exist.
_VISIBLE = 90.0
_NEEDED = ("RANK", "MASTER_ADDR", "MASTER_PORT")
#: What launchers set, and Accelerate reads. Some of it is also set where every process works alone, as by srun.
_LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)

#: The group for everything but gradients and losses.
_group: Any = None


class NotConnectedError(UserError):
    """The other processes cannot be reached, so that each one reports the error itself."""


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


def warn_if_one_of_many() -> None:
    """Warn if accelerate launch was asked for several processes on the CPU, of which it starts one without mpirun."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" and os.environ.get("MASTER_PORT"):
        warnings.warn(
            "accelerate launch --cpu started one process; for several on CPUs use torchrun, or accelerate launch "
            "--multi_gpu, with --device cpu",
            DataWarning,
            stacklevel=3,
        )


@contextmanager
def not_launched() -> Iterator[None]:
    """Hide what launchers set from Accelerate, for a process that is alone although some of it is set."""
    hidden = {name: os.environ.pop(name) for name in _LAUNCHERS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


# ---------------------------------------------------------------- starting together


def join() -> None:
    """Connect the processes that were launched together; the first call waits for all of them."""
    global _group
    if count() == 1 or _group is not None:
        return
    _check_environment()
    import torch.distributed as dist

    # Accelerate asks for it, and not every launcher sets it.
    os.environ["LOCAL_RANK"] = str(local_index())
    notice = threading.Timer(_SILENT, _say_waiting)
    notice.start()
    try:
        # Without a backend: gloo for the CPU and, if there is an accelerator, its own for that.
        dist.init_process_group(timeout=PATIENCE)
        _group = dist.new_group(backend="gloo", timeout=_FOR_EVER)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        hint = f"{_INTERFACE}; otherwise {_HINT}" if "gloo" in str(error) else _HINT
        raise NotConnectedError(f"{_where()}: the others did not connect ({reason}); {hint}") from None
    finally:
        notice.cancel()


def leave() -> None:
    """Disconnect; for the end of a command in which nothing went wrong."""
    global _group
    if _group is not None:
        import torch.distributed as dist

        dist.destroy_process_group()
        _group = None


_HINT = "start all processes with torchrun or accelerate launch, or run `unset RANK WORLD_SIZE` to train in one process"


#: gloo takes the address of the machine's own name, which is 127.0.1.1 on many.
_INTERFACE = (
    "on several machines, set GLOO_SOCKET_IFNAME to the network interface between them, as `ip address` names it"
)


def _where() -> str:
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return f"process {index()} of {count()}, which meet at {address}"


def _say_waiting() -> None:
    sys.stderr.write(f"{_where()}: waiting for the others; if there are none, {_HINT}\n")


def _check_environment() -> None:
    """Refuse what a launcher would not set: often left over from an earlier command."""
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    problem = f"{', '.join(missing)} is not set" if missing else ""
    if not missing and index() >= count():
        problem = f"RANK={index()} is not below it"
    if problem:
        raise NotConnectedError(f"WORLD_SIZE={count()} is set, but {problem}; {_HINT}")


# ---------------------------------------------------------------- telling each other


def gathered(value: Value) -> list[Value]:
    """The values of all processes, in their order."""
    if count() == 1:
        return [value]
    join()
    import torch.distributed as dist

    values: list[Any] = [None] * count()
    with losses_noticed():
        dist.all_gather_object(values, value, group=_group)
    return values


def at_main(value: Value) -> list[Value]:
    """In the main process, the values of all processes, in their order; in the others, none."""
    if count() == 1:
        return [value]
    join()
    import torch.distributed as dist

    values: list[Any] | None = [None] * count() if is_main_process() else None
    with losses_noticed():
        dist.gather_object(value, values, dst=0, group=_group)
    return values or []


def from_main(value: Value) -> Value:
    """The value of the main process; the others' values are not used."""
    if count() == 1:
        return value
    join()
    import torch.distributed as dist

    values = [value if is_main_process() else None]
    with losses_noticed():
        dist.broadcast_object_list(values, src=0, group=_group)
    return values[0]  # type: ignore[return-value]


def patient_group() -> Any:
    """torch's group in which a process may wait for another as long as that takes; None in a process that is alone."""
    join()
    return _group


def wait() -> None:
    """Wait until all processes are here."""
    gathered(None)


def in_order(mine: Sequence[Value], total: int) -> list[Value]:
    """All `total` items in every process, where process i of n has items i, i + n, i + 2n, … and all have as many."""
    return [item for one in zip(*gathered(mine), strict=True) for item in one][:total]


# ---------------------------------------------------------------- failing together


@contextmanager
def agreed() -> Iterator[None]:
    """If the block fails in any process, by the user or the machine, all raise the same error; the main one prints it.

    Every process must come here. Without it, one process would end alone and the others would wait for it.
    """
    if count() == 1:
        yield
        return
    mine: _Reported | None = None
    try:
        yield
    except (AgreedError, AgreedFaultError):
        raise
    except Exception as error:
        is_fault = isinstance(error, MACHINE_ERRORS)
        if not is_fault and not isinstance(error, UserError):
            raise
        mine = AgreedFaultError if is_fault else AgreedError, str(error)
    _raise_first(mine)


#: How all processes raise an error of one of them, and its text.
_Reported = tuple[type[AgreedError] | type[AgreedFaultError], str]


def _raise_first(mine: _Reported | None) -> None:
    found = [(number, one) for number, one in enumerate(gathered(mine)) if one is not None]
    if found:
        number, (kind, text) = found[0]
        raise kind(f"process {number} of {count()}: {text}" if number else text)


def agree_on(error: Exception) -> Exception:
    """The error to report for one that ended the command here: all processes' if they have not met yet.

    Processes that have met fail together inside `agreed`; outside it, every process has errors of its own.
    """
    if count() == 1 or isinstance(error, AgreedError | AgreedFaultError | NotConnectedError):
        return error
    is_fault = isinstance(error, MachineFaultError)
    if _group is not None:
        return (MachineFaultError if is_fault else UserError)(f"process {index()} of {count()}: {error}")
    try:
        _raise_first((AgreedFaultError if is_fault else AgreedError, str(error)))
    except (UserError, MachineFaultError, ProcessLostError) as found:
        return found
    return error


def check_shared(folder: Path) -> None:
    """Refuse a folder of which a process does not see the main one's files, but, for example, its own machine's."""
    if count() == 1:
        return
    # A new name, which no machine has in its cache.
    mark = folder / from_main(f".seen-by-all-{uuid.uuid4().hex}")
    try:
        with agreed():
            if is_main_process():
                mark.touch()
        with agreed():
            _wait_for(mark)
    finally:
        if is_main_process():
            mark.unlink(missing_ok=True)


def _wait_for(mark: Path) -> None:
    until = time.monotonic() + _VISIBLE
    while not mark.is_file():
        if time.monotonic() > until:
            raise UserError(
                f"{mark.parent.absolute()} on {platform.node()} is not the folder of process 0; use a folder that all "
                "machines share, and the same path on each"
            )
        time.sleep(0.1)


@contextmanager
def first_on_each_machine() -> Iterator[None]:
    """The first process of each machine goes through the block before the others, which find its files in the cache."""
    is_first = local_index() == 0
    if not is_first:
        wait()
    try:
        yield
    finally:
        if is_first:
            wait()


@contextmanager
def losses_noticed() -> Iterator[None]:
    """Raise a ProcessLostError where torch says that another process does not answer."""
    try:
        yield
    except RuntimeError as error:
        if count() == 1 or not _is_loss(error):
            raise
        # Without the line of torch's source before it, and its advice after it.
        reason = str(error).strip().split("\n")[0].split("] ", 1)[-1].split(". This")[0]
        # The main process may be the one that is lost, and nobody knows which one it is.
        speaks = index() == 1
        raise ProcessLostError(f"another of the {count()} processes ended or hangs ({reason})", speaks=speaks) from None


def _is_loss(error: RuntimeError) -> bool:
    import torch.distributed as dist

    # gloo raises plain RuntimeErrors that begin with the line of its source.
    return isinstance(error, dist.DistError) or "gloo" in str(error)
