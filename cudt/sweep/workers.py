"""Processes that train a sweep's cells, one cell at a time each; any of them may die at any time.

Nothing heavy is imported here: a worker says which GPU it may see before torch is imported.
"""

from __future__ import annotations

import contextlib
import faulthandler
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

#: Seconds between two reports of one cell's progress.
_OFTEN = 0.3
#: Seconds that a worker which was asked to stop has to save its run.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Progress:
    """How far a cell's training is."""

    step: int
    steps: int
    loss: float | None


@dataclass(frozen=True)
class Note:
    """Something about the data that the user should know."""

    text: str


@dataclass(frozen=True)
class Done:
    """A cell's outcome."""

    outcome: Any


@dataclass(frozen=True)
class Failed:
    """Why a cell cannot be done."""

    reason: str


@dataclass(frozen=True)
class Interrupted:
    """The cell was saved, and can go on."""


@dataclass(frozen=True)
class Died:
    """The worker is gone, and its cell has no outcome."""

    how: str


Message = Progress | Note | Done | Failed | Interrupted | Died


# ---------------------------------------------------------------- in the worker's process


def _work(connection: Connection, environment: dict[str, str], log: Path, do_named: str) -> None:
    os.environ.update(environment)
    if hasattr(os, "setsid"):
        # Ctrl-C is for the sweep, which asks each worker to stop once.
        os.setsid()
    _write_to(log)
    threading.Thread(target=_follow_parent, daemon=True).start()
    warnings.showwarning = _told_through(connection, warnings.showwarning)
    do = pkgutil.resolve_name(do_named)
    while (job := _received(connection)) is not None:
        message = _done(do, job, connection)
        gc.collect()
        _tell(connection, message)
        if not isinstance(message, Done):
            # What went wrong may have left memory, or a GPU, in any state.
            return


def _done(do: Callable[[Any, Any], Any], job: Any, connection: Connection) -> Message:
    try:
        return Done(do(job, Reporter(connection)))
    except (TrainingInterruptedError, KeyboardInterrupt):
        return Interrupted()
    except (UserError, TrainingStoppedError) as error:
        return Failed(str(error))
    except Exception as error:
        traceback.print_exc()
        return Failed(f"{type(error).__name__}: {error}")


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _tell(connection: Connection, message: Message) -> None:
    # Without a sweep to tell, a run is still saved as it should be.
    with contextlib.suppress(OSError):
        connection.send(message)


def _write_to(log: Path) -> None:
    """Whatever libraries print would run through the sweep's own picture; and a crash leaves its trace here."""
    log.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(handle, number)
    faulthandler.enable()


def _follow_parent() -> None:
    """A sweep that is killed takes its workers with it: they save, and end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_PATIENCE)
        os._exit(1)


def _told_through(connection: Connection, shown: Any) -> Any:
    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            _tell(connection, Note(str(message)))
        else:
            shown(message, category, *place, **more)

    return show


class Reporter:
    """A training's display that tells the sweep how far it is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0.0

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, view: Any) -> None:
        if time.monotonic() - self._last > _OFTEN:
            self._last = time.monotonic()
            losses = view.train_losses or dict(enumerate(view.validation_losses or [], 1))
            _tell(self._connection, Progress(view.step, view.steps, losses[max(losses)] if losses else None))

    def epoch_ended(self, view: Any, metric: str) -> None:
        self.update(view)


# ---------------------------------------------------------------- in the sweep's process


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection

    def dismiss(self, patience: float) -> None:
        """See it off; one without a job ends by itself."""
        self.connection.close()
        self.process.join(patience)
        self.process.kill()
        self.process.join()


@dataclass
class _Seat:
    """A place for a worker; who sits in it may change."""

    environment: dict[str, str]
    log: Path
    worker: _Worker | None = None
    key: Any = None
    """Of the job that it is at work on."""
    began: float = 0.0
    is_stopping: bool = False


class Workers:
    """So many workers as there are environments, each started when it is first needed and again after it died.

    `do` names a function of a job and a display (`module:function`), because a worker must import it late.
    """

    def __init__(self, environments: Sequence[dict[str, str]], logs: Path, do: str) -> None:
        numbered = enumerate(environments, 1)
        self._seats = [_Seat(environment, logs / f"worker-{number}.log") for number, environment in numbered]
        self._do = do

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for seat in self._seats:
            if seat.worker is not None:
                seat.worker.dismiss(0 if seat.key is not None else 5)

    @property
    def has_room(self) -> bool:
        return any(seat.key is None for seat in self._seats)

    @property
    def n_busy(self) -> int:
        return sum(seat.key is not None for seat in self._seats)

    @property
    def is_busy(self) -> bool:
        return self.n_busy > 0

    def start(self, key: Any, job: Any) -> None:
        """Give a job to a worker that has none; `key` names it in what is told about it."""
        seat = next(seat for seat in self._seats if seat.key is None)
        if seat.worker is None or not seat.worker.process.is_alive():
            seat.worker, seat.is_stopping = self._hire(seat), False
        seat.key, seat.began = key, time.monotonic()
        # If it died between two jobs, `wait` will tell.
        with contextlib.suppress(OSError):
            seat.worker.connection.send(job)

    def wait(self, timeout: float) -> Iterator[tuple[Any, float, Message]]:
        """What happens within some seconds: the job's key, the seconds it took up to now, and what there is to tell."""
        busy = {
            seat.worker.connection: seat for seat in self._seats if seat.worker is not None and seat.key is not None
        }
        for connection in multiprocessing.connection.wait(list(busy), timeout):
            assert isinstance(connection, Connection)
            seat = busy[connection]
            key, seconds = seat.key, time.monotonic() - seat.began
            message = _read(seat)
            if not isinstance(message, Progress | Note):
                seat.key = None
            if isinstance(message, Failed | Interrupted | Died) and seat.worker is not None:
                seat.worker.dismiss(_PATIENCE)
                seat.worker = None
            yield key, seconds, message

    def stop(self) -> None:
        """Ask every worker to save its run and end, once."""
        for seat in self._seats:
            if seat.key is not None and seat.worker is not None and not seat.is_stopping:
                seat.is_stopping = True
                seat.worker.process.terminate()

    def _hire(self, seat: _Seat) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, seat.environment, seat.log, self._do), name="cudt-worker")
        process.start()
        # It has a copy; ours would hide from us that it is gone.
        theirs.close()
        return _Worker(process, ours)


def _read(seat: _Seat) -> Message:
    """What a worker says next, or that it says nothing any more."""
    assert seat.worker is not None
    try:
        return seat.worker.connection.recv()
    except (EOFError, OSError):
        seat.worker.process.join()
        code = seat.worker.process.exitcode or 0
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        return Died(f"{how}; see {seat.log}")
