"""A worker: takes trials from a shared storage and runs them, until nothing is left.

How a trial ends:

| `Source.run` | the trial |
|---|---|
| returns a result | is finished |
| raises UserError, TrainingStoppedError or any other Exception | has failed, with the reason |
| raises MACHINE_ERRORS (a full disk, a lost storage) | waits again, with nothing spent; the worker
ends | | runs out of memory for a second command | has failed: it does not fit; the worker needs a
new process | | raises TrainingPrunedError | is pruned, with the reason | | raises
TrainingInterruptedError or KeyboardInterrupt (SIGTERM, Ctrl-C) | waits again; the worker ends | |
raises LostTrialError | belongs to another worker by now; nothing is written | | raises an error of
the storage | waits again; the worker needs a new process | | dies | waits again: its parent, or
another worker, gives it back (recovery.py) |
"""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from typing import Any, NoReturn

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from cudt.sweep.database import first_line, is_server
from cudt.sweep.lease import Lease
from cudt.sweep.messages import CellProgress
from cudt.sweep.queue import NotACellError, NothingWaitsError, Trial
from cudt.sweep.recovery import give_back_lost, spent_on
from cudt.sweep.shared import LostTrialError, SharedStorage, heartbeat_interval
from cudt.sweep.source import Source
from cudt.utils.errors import (
    MACHINE_ERRORS,
    DataWarning,
    MachineFaultError,
    TrainingInterruptedError,
    TrainingPrunedError,
    TrainingStoppedError,
    UserError,
)

#: Exit codes of a worker: nothing is left to do; it was asked to stop; it needs a new process.
DONE, STOPPED, RESTART = 0, 130, 75
#: Seconds between two questions of an idle worker: at first, and after a while in a file and on a
#: server.
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_ON_SERVER = 0.5, 5.0, 10.0
#: Heartbeats between two looks of an idle worker at all trials, if it does not find any waiting.
_BEATS = 1.5
#: Seconds of a trial after which unused memory is collected, which itself takes about half a
#: second.
_WORTH_COLLECTING = 5.0
#: Seconds between two times that the progress of a trial is stored in a file; on a server,
#: heartbeats store it.
_PROGRESS_INTERVAL = 3.0
#: What Optuna and SQLAlchemy raise if the storage is away for longer than anybody waits.
_STORAGE_ERRORS = (StorageInternalError, SQLAlchemyError)


class _CellFailedError(Exception):
    """Ends a trial as failed; its facts have the reason."""


class _InterruptedError(BaseException):
    """Leaves Optuna's loop without a result, because the trial has to wait again."""


class _BrokenError(BaseException):
    """Leaves Optuna's loop without a result, because of an error that is not the cell's fault."""


def work(
    sources: Callable[[], Iterable[Source]],
    is_closed: Callable[[], bool] = lambda: False,
    on_failure: Callable[[], None] = lambda: None,
) -> int:
    """Run trials until nothing is left, `is_closed`, or a new process is needed; returns the exit
    code.

    `sources` gives the sources in the order in which trials are taken from them, and is called
    before every trial. `on_failure` is called before a trial is recorded as failed. A fault of the
    machine is raised as MachineFaultError.
    """
    try:
        with _stopping_on_sigterm():
            return _work(sources, is_closed, on_failure)
    except KeyboardInterrupt:
        return STOPPED


def _work(
    sources: Callable[[], Iterable[Source]],
    is_closed: Callable[[], bool],
    on_failure: Callable[[], None],
) -> int:
    ran: Source | None = None
    while not is_closed():
        found = list(_up_to_waiting(sources(), ran))
        if found and found[-1].queue.has_waiting:
            ran = found[-1]
            if not _run_next(ran, on_failure):
                return RESTART
            continue
        ran = None
        others = [source for source in found if not source.queue.is_done]
        if not others:
            return DONE
        _wait_for_trials(others)
    return DONE


def _wait_for_trials(sources: Sequence[Source]) -> None:
    """Wait until a trial is waiting, none is running, or it is time to look for workers that are
    gone.
    """
    studies = {source.queue.study._study_id for source in sources}
    storage = sources[0].queue.storage
    longest = _LONGEST_ON_SERVER if is_server(storage) else _LONGEST_PAUSE
    end, pause = time.monotonic() + _BEATS * heartbeat_interval(), _FIRST_PAUSE
    while time.monotonic() < end:
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(1.5 * pause, longest)
        waiting, running = (
            storage.count_open(studies) if isinstance(storage, SharedStorage) else (1, 0)
        )
        if waiting or not running:
            return
    give_back_lost(sources)


@contextmanager
def _stopping_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does; training has its own handler, which
    saves first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _up_to_waiting(sources: Iterable[Source], ran: Source | None) -> Iterator[Source]:
    """The sources up to the first one that has a waiting trial, all of them read just now; those
    after it are not.

    The source of the trial that has just run was read after it.
    """
    for source in sources:
        if source is ran:
            source.queue.fill()
        elif not source.queue.is_done:
            source.queue.top_up()
        yield source
        if source.queue.has_waiting:
            return


def _run_next(source: Source, on_failure: Callable[[], None]) -> bool:
    """Start a waiting trial and run it; returns whether this process can run another one."""
    attempt = _Attempt(source, on_failure)
    study = source.queue.study
    with attempt.noting_warnings():
        try:
            study.optimize(attempt, n_trials=1, catch=(NotACellError, _CellFailedError))
            attempt.check_kept()
        except NothingWaitsError:
            pass
        except _InterruptedError:
            attempt.give_back()
            if not attempt.is_fenced:
                raise KeyboardInterrupt from None
        except _BrokenError as error:
            attempt.give_back_after(error)
        except UnboundLocalError as error:
            # Optuna's own, if it is interrupted while it stores a result.
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            attempt.give_back()
            raise KeyboardInterrupt from None
        except (LostTrialError, UpdateFinishedTrialError, ValueError) as error:
            if not attempt.has_lost(error):
                raise
            print(
                "another worker has taken this trial over; its result is left to that worker",
                file=sys.stderr,
            )
    source.queue.refresh()
    if attempt.seconds > _WORTH_COLLECTING:
        gc.collect()
    return attempt.is_clean


class _Attempt:
    """The objective that Optuna calls with one trial."""

    def __init__(self, source: Source, on_failure: Callable[[], None]) -> None:
        self._source, self._storage, self._on_failure = source, source.queue.storage, on_failure
        self._trial: Trial | None = None
        self._began = time.monotonic()
        self._stored = 0.0
        self._warned: list[str] = []
        self.is_clean = True
        """Whether another trial can follow; an unexpected error may have left memory, or a GPU, in
        any state."""
        self.is_fenced = False
        """Whether the trial was stopped because its heartbeats do not reach the storage."""

    def __call__(self, trial: optuna.Trial) -> float:
        try:
            return self._result(trial)
        except (TrainingInterruptedError, KeyboardInterrupt):
            self.is_clean = False
            raise _InterruptedError from None
        except (NotACellError, _CellFailedError, optuna.TrialPruned):
            raise
        except Exception as error:
            self.is_clean = False
            raise _BrokenError from error

    def _result(self, trial: optuna.Trial) -> float:
        self._trial = self._source.queue.begin(trial)
        try:
            result = self._source.run(
                self._trial, self.report, Lease(self._storage, trial._trial_id)
            )
        except (TrainingInterruptedError, *_STORAGE_ERRORS):
            raise
        except TrainingPrunedError as error:
            self._finish({**self._source.facts(self._trial), "reason": str(error)})
            raise optuna.TrialPruned from None
        except MACHINE_ERRORS:
            raise
        except Exception as error:
            if isinstance(error, UserError | TrainingStoppedError):
                self._fail(str(error))
            traceback.print_exc()
            self.is_clean = False
            self._fail(f"{type(error).__name__}: {error}")
        self._finish(result.facts)
        return result.score

    def _fail(self, reason: str) -> NoReturn:
        assert self._trial is not None
        if isinstance(self._storage, SharedStorage) and self._storage.is_lost(self._trial.trial_id):
            raise LostTrialError
        self._finish({**self._source.facts(self._trial), "reason": reason})
        self._on_failure()
        raise _CellFailedError(reason) from None

    def _finish(self, facts: dict[str, Any]) -> None:
        assert self._trial is not None
        self._source.queue.remember(self._trial, {**facts, **spent_on(self._trial, self.seconds)})

    @property
    def seconds(self) -> float:
        """Since the attempt began."""
        return time.monotonic() - self._began

    def report(self, progress: CellProgress) -> None:
        """Store the progress now and then, and stop if the trial is, or may soon be, another
        worker's.
        """
        assert self._trial is not None
        if isinstance(self._storage, SharedStorage):
            if self._storage.was_lost(self._trial.trial_id) or self._storage.may_be_lost(
                self._trial.trial_id
            ):
                raise LostTrialError
            if self._storage.is_unrenewed(self._trial.trial_id) and not self.is_fenced:
                self.is_fenced = True
                # As if somebody had asked: training saves and stops before others may take over.
                signal.raise_signal(signal.SIGTERM)
        now = {"progress": {**asdict(progress), "seconds": round(self.seconds, 1)}}
        if isinstance(self._storage, SharedStorage) and is_server(self._storage):
            self._storage.add_at_heartbeat(self._trial.trial_id, now)
        elif time.monotonic() - self._stored > _PROGRESS_INTERVAL:
            self._stored = time.monotonic()
            self._note(now)

    @contextmanager
    def noting_warnings(self) -> Any:
        """Store warnings about the data with the trial, for whoever watches the sweep."""
        with warnings.catch_warnings():
            others = warnings.showwarning

            def show(
                message: Warning | str, category: type[Warning], *location: Any, **more: Any
            ) -> None:
                if self._trial is not None and issubclass(category, DataWarning):
                    self._warned.append(str(message))
                    self._note({"warnings": self._warned})
                else:
                    others(message, category, *location, **more)

            warnings.showwarning = show
            yield

    def _note(self, attributes: dict[str, Any]) -> None:
        """Store attributes that are not needed: training does not wait for a server that is
        away.
        """
        assert self._trial is not None
        hasty = self._storage.hasty() if isinstance(self._storage, SharedStorage) else nullcontext()
        with suppress(Exception), hasty:
            for key, value in attributes.items():
                self._storage.set_trial_user_attr(self._trial.trial_id, key, value)

    def give_back(self, fault: BaseException | None = None) -> None:
        """Let the trial wait for another worker; after a fault of the machine, with nothing
        spent.
        """
        if self._trial is not None:
            spent = spent_on(self._trial, self.seconds if fault is None else 0.0)
            self._source.queue.give_back(self._trial, spent)

    def give_back_after(self, error: _BrokenError) -> None:
        """Let the trial wait if the machine failed or the storage was away for too long; else the
        worker ends.
        """
        cause = error.__cause__
        assert cause is not None
        if isinstance(cause, MACHINE_ERRORS):
            # The storage may be on the same full disk; the parent then tries again.
            with suppress(*_STORAGE_ERRORS):
                self.give_back(cause)
            raise MachineFaultError(str(cause)) from cause
        if not isinstance(cause, _STORAGE_ERRORS) or self._trial is None:
            # Its parent gives the trial back, and counts a death.
            raise cause
        print(f"the storage was away for too long: {first_line(cause)}", file=sys.stderr)
        self.give_back()

    def check_kept(self) -> None:
        """Raise LostTrialError if another process had taken the trial when it ended here."""
        storage = self._storage if isinstance(self._storage, SharedStorage) else None
        if (
            self._trial is not None
            and storage is not None
            and storage.was_lost(self._trial.trial_id)
        ):
            raise LostTrialError

    def has_lost(self, error: BaseException) -> bool:
        """Whether an error means that another process has ended or taken the trial."""
        if isinstance(error, LostTrialError):
            self.is_clean = False
            return True
        return self._trial is not None and _state(self._storage, self._trial) != TrialState.RUNNING


def _state(storage: BaseStorage, trial: Trial) -> TrialState:
    return storage.get_trial(trial.trial_id).state
