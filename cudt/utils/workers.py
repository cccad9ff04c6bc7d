"""A pool of worker processes, one job at a time each; any of them may die at any time.

Nothing heavy is imported here: a worker sets which GPU it may see before torch is imported.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import pkgutil
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from cudt.utils.errors import DataWarning, TrainingInterruptedError, TrainingStoppedError, UserError
from cudt.utils.worker_processes import redirect_output, stop_with_parent

#: Seconds that a worker has to save its run after it was asked to stop.
_GRACE_PERIOD = 60.0


@dataclass(frozen=True)
class Reported:
    """A value that a job reported while it was running."""

    value: Any


@dataclass(frozen=True)
class Warned:
    """A warning about the data that a job raised."""

    text: str


@dataclass(frozen=True)
class Done:
    """What a finished job returned."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """Why a job failed."""

    reason: str


@dataclass(frozen=True)
class Interrupted:
    """The job was stopped, saved its state and can be resumed."""


@dataclass(frozen=True)
class Died:
    """The worker's process ended before its job returned anything."""

    how: str


Message = Reported | Warned | Done | Failed | Interrupted | Died
Reporter = Callable[[Any], None]


# ---------------------------------------------------------------- in the worker's process


def _work(connection: Connection, environment: dict[str, str], log: Path, function_name: str) -> None:
    os.environ.update(environment)
    if hasattr(os, "setsid"):
        # Ctrl-C must reach the parent alone, which asks each worker to stop once.
        os.setsid()
    redirect_output(log)
    threading.Thread(target=stop_with_parent, daemon=True).start()
    warnings.showwarning = _sending_data_warnings(connection, warnings.showwarning)
    function = pkgutil.resolve_name(function_name)
    while (job := _receive(connection)) is not None:
        message = _run_job(function, job, connection)
        gc.collect()
        _send(connection, message)
        if not isinstance(message, Done):
            # A failure may have left memory, or a GPU, in any state; the next job gets a new process.
            return


def _run_job(function: Callable[[Any, Reporter], Any], job: Any, connection: Connection) -> Message:
    try:
        return Done(function(job, lambda value: _send(connection, Reported(value))))
    except (TrainingInterruptedError, KeyboardInterrupt):
        return Interrupted()
    except (UserError, TrainingStoppedError) as error:
        return Failed(str(error))
    except Exception as error:
        traceback.print_exc()
        return Failed(f"{type(error).__name__}: {error}")


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _send(connection: Connection, message: Message) -> None:
    # If the parent is gone, the job still has to end cleanly and save its run.
    with contextlib.suppress(OSError):
        connection.send(message)


def _sending_data_warnings(connection: Connection, show_others: Any) -> Any:
    """A `warnings.showwarning` that sends warnings about data to the parent."""

    def show(message: Warning | str, category: type[Warning], *location: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            _send(connection, Warned(str(message)))
        else:
            show_others(message, category, *location, **more)

    return show


# ---------------------------------------------------------------- in the parent process


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection

    def dismiss(self, timeout: float) -> None:
        """Close the pipe, which ends an idle worker, and kill the process if it outlives the timeout."""
        self.connection.close()
        self.process.join(timeout)
        self.process.kill()
        self.process.join()


@dataclass
class _Slot:
    """One of the pool's slots; its worker is replaced after it died."""

    environment: dict[str, str]
    log: Path
    worker: _Worker | None = None
    key: Any = None
    """Of the job that is running; None while idle."""
    began: float = 0.0
    is_stopping: bool = False


class Workers:
    """A pool with one worker per environment; a worker is started when it is first needed, and again after it died.

    `function` names a function of a job and a report callback (`module:function`): a worker imports it only after its
    environment is set.
    """

    def __init__(self, environments: Sequence[dict[str, str]], logs: Path, function: str) -> None:
        numbered = enumerate(environments, 1)
        self._slots = [_Slot(environment, logs / f"worker-{number}.log") for number, environment in numbered]
        self._function = function

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for slot in self._slots:
            if slot.worker is not None:
                slot.worker.dismiss(0 if slot.key is not None else 5)

    @property
    def has_room(self) -> bool:
        return any(slot.key is None for slot in self._slots)

    @property
    def n_busy(self) -> int:
        return sum(slot.key is not None for slot in self._slots)

    @property
    def is_busy(self) -> bool:
        return self.n_busy > 0

    def start(self, key: Any, job: Any) -> None:
        """Give a job to an idle worker; `key` identifies it in the messages of `wait`."""
        slot = next(slot for slot in self._slots if slot.key is None)
        if slot.worker is None or not slot.worker.process.is_alive():
            slot.worker, slot.is_stopping = self._spawn(slot), False
        slot.key, slot.began = key, time.monotonic()
        # If the worker died between two jobs, `wait` reports it.
        with contextlib.suppress(OSError):
            slot.worker.connection.send(job)

    def wait(self, timeout: float) -> Iterator[tuple[Any, float, Message]]:
        """The messages that arrive within `timeout` seconds: the job's key, its seconds so far, and the message."""
        busy = {
            slot.worker.connection: slot for slot in self._slots if slot.worker is not None and slot.key is not None
        }
        for connection in multiprocessing.connection.wait(list(busy), timeout):
            assert isinstance(connection, Connection)
            slot = busy[connection]
            key, seconds = slot.key, time.monotonic() - slot.began
            message = _read(slot)
            if not isinstance(message, Reported | Warned):
                slot.key = None
            if isinstance(message, Failed | Interrupted | Died) and slot.worker is not None:
                slot.worker.dismiss(_GRACE_PERIOD)
                slot.worker = None
            yield key, seconds, message

    def stop(self) -> None:
        """Ask every busy worker, once, to save its run and end."""
        for slot in self._slots:
            if slot.key is not None and slot.worker is not None and not slot.is_stopping:
                slot.is_stopping = True
                slot.worker.process.terminate()

    def _spawn(self, slot: _Slot) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work, args=(theirs, slot.environment, slot.log, self._function), name="cudt-worker"
        )
        process.start()
        # The worker has its own copy; with ours open, its end would never be seen as an end of file.
        theirs.close()
        return _Worker(process, ours)


def _read(slot: _Slot) -> Message:
    """The worker's next message, or how its process ended."""
    assert slot.worker is not None
    try:
        return slot.worker.connection.recv()
    except (EOFError, OSError):
        slot.worker.process.join()
        code = slot.worker.process.exitcode or 0
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        return Died(f"{how}; see {slot.log}")
