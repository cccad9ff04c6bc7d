"""Optuna's database storage for many workers: trials have holders, calls wait for a server that is away.

A trial that a worker cannot finish goes back to WAITING, so a cell stays one trial however many workers die. Optuna's
own way (fail it, add a copy) loses the cell if the process dies between the two, and renumbers it. Whether a trial
may go back is decided in one transaction with a look at its holder, so two processes that find the same dead worker
do not give the trial back twice.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import TrialState
from sqlalchemy import event, func
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError
from sqlalchemy.orm import Session, selectinload

from cudt.sweep.holder import Holder, new_holder

#: Seconds between two heartbeats of a running trial; CUDT_HEARTBEAT sets it.
_HEARTBEAT = 20
#: Heartbeats that may be missing before others take the trial, and before its holder stops by itself.
_GRACE, _FENCE = 6, 4
#: Seconds for which a call waits for a server that is away, and the longest pause between two attempts.
_PATIENCE, _LONGEST_PAUSE = 300.0, 10.0
#: The calls that change or read the database.
_CALLS = (
    "create_new_study",
    "set_study_user_attr",
    "set_study_system_attr",
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_directions",
    "get_study_user_attrs",
    "get_study_system_attrs",
    "get_all_studies",
    "_create_new_trial",
    "_set_trial_param",
    "set_trial_state_values",
    "set_trial_user_attr",
    "set_trial_system_attr",
    "set_trial_intermediate_value",
    "get_trial_id_from_study_id_trial_number",
    "get_trial",
    "_get_trials",
    "give_back",
    "stale",
)

_log = logging.getLogger(__name__)


class LostTrialError(BaseException):
    """Another process has taken this process's trial: write nothing more, neither files nor results.

    Not an Exception, so that training does not record it as a failure of the run.
    """


@dataclass(frozen=True)
class Stale:
    """A running trial whose holder gave no sign of life for the grace period."""

    trial_id: int
    holder: Holder | None
    """None if it was started by a version of cudt without holders."""


def heartbeat_interval() -> int:
    """Seconds between two heartbeats."""
    return max(1, int(os.environ.get("CUDT_HEARTBEAT") or _HEARTBEAT))


class SharedStorage(RDBStorage):
    """A database that many workers use at once."""

    def __init__(self, url: str, engine_kwargs: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self._is_hasty = threading.local()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            interval = heartbeat_interval()
            super().__init__(url, engine_kwargs, heartbeat_interval=interval, grace_period=_GRACE * interval)
        if self.engine.name == "sqlite":
            _lock_at_begin(self.engine)

    # ------------------------------------------------------------ holding a trial

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Set a trial's state; whoever sets it to RUNNING becomes its holder."""
        if state != TrialState.RUNNING:
            return super().set_trial_state_values(trial_id, state, values)
        # Before it runs: nobody may see a running trial whose last heartbeat is that of an earlier holder.
        super().record_heartbeat(trial_id)
        if not super().set_trial_state_values(trial_id, state, values):
            return False
        held = _Held(new_holder(), time.monotonic())
        super().set_trial_user_attr(trial_id, "holder", held.holder)
        with self._lock:
            self._held[trial_id] = held
        return True

    def record_heartbeat(self, trial_id: int) -> None:
        """Record a heartbeat and notice if another process has taken the trial.

        An error is logged and not raised: it would end Optuna's heartbeat thread, and the trial would look dead.
        """
        try:
            super().record_heartbeat(trial_id)
            is_lost = not self._is_held(trial_id)
        except Exception as error:  # drivers raise many types
            _log.warning("no heartbeat for trial %d: %s", trial_id, _first_line(error))
            return
        with self._lock:
            if (held := self._held.get(trial_id)) is not None:
                held.is_lost, held.renewed = is_lost, time.monotonic()

    def is_lost(self, trial_id: int) -> bool:
        """Whether another process has taken a trial that this process started; reads the database."""
        return not self._is_held(trial_id)

    def was_lost(self, trial_id: int) -> bool:
        """Whether the last heartbeat found that another process has taken the trial."""
        with self._lock:
            return trial_id in self._held and self._held[trial_id].is_lost

    def is_unrenewed(self, trial_id: int) -> bool:
        """Whether a trial has had no heartbeat for so long that others are about to take it."""
        with self._lock:
            held = self._held.get(trial_id)
            return held is not None and time.monotonic() - held.renewed > _FENCE * heartbeat_interval()

    def _is_held(self, trial_id: int) -> bool:
        with self._lock:
            held = self._held.get(trial_id)
        if held is None:
            return True
        with self.scoped_session() as session:
            trial = models.TrialModel.find_or_raise_by_id(trial_id, session)
            return bool(trial.state == TrialState.RUNNING) and _holder(trial, session) == held.holder

    def holder(self, trial_id: int) -> Holder | None:
        """This process as the holder of a trial that it started."""
        with self._lock:
            return self._held[trial_id].holder if trial_id in self._held else None

    def give_back(self, trial_id: int, holder: Holder | None, attributes: dict[str, Any], state: TrialState) -> bool:
        """Let a trial wait again, or end it, if this holder still has it; returns whether it had."""
        with self._transaction() as session:
            trial = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
            if trial.state != TrialState.RUNNING or _holder(trial, session) != holder:
                return False
            for key, value in {**attributes, "holder": None}.items():
                self._set_trial_attr_without_commit(session, models.TrialUserAttributeModel, trial_id, key, value)
            trial.state = state
            if state.is_finished():
                trial.datetime_complete = datetime.now()
        return True

    def stale(self, study_id: int) -> list[Stale]:
        """The running trials of a study without a sign of life for the grace period."""
        grace = timedelta(seconds=_GRACE * heartbeat_interval())
        with self.scoped_session() as session:
            now = session.execute(func.now()).scalar()
            assert now is not None
            running = (
                session.query(models.TrialModel)
                .options(selectinload(models.TrialModel.heartbeats))
                .filter(models.TrialModel.state == TrialState.RUNNING, models.TrialModel.study_id == study_id)
            )
            found = []
            for trial in running.all():
                # Without a heartbeat: created by a version of cudt that had none. Its clock is the client's.
                last = [(beat.heartbeat, now.replace(tzinfo=None)) for beat in trial.heartbeats]
                seen, today = last[0] if last else (trial.datetime_start, datetime.now())
                if seen is None or today - seen > grace:
                    found.append(Stale(int(trial.trial_id), _holder(trial, session)))
            return found

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        # Optuna would fail them before every trial; `stale` and `give_back` let them wait again instead.
        return []

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        session = self.scoped_session()
        try:
            yield session
            session.commit()
        except BaseException:
            session.rollback()
            raise
        finally:
            session.close()

    # ------------------------------------------------------------ a server that is away

    @contextmanager
    def hasty(self) -> Iterator[None]:
        """Calls of this thread raise at once if the server is away."""
        self._is_hasty.value = True
        try:
            yield
        finally:
            self._is_hasty.value = False

    def patiently(self, call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Call a method; if the server is away, try again for five minutes."""
        end, pause = time.monotonic() + _PATIENCE, 0.2
        while True:
            try:
                return call(*arguments, **more)
            except (StorageInternalError, DBAPIError) as error:
                if getattr(self._is_hasty, "value", False) or not _is_away(error) or time.monotonic() > end:
                    raise
                _log.warning("the storage does not answer, trying again: %s", _first_line(error))
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_PAUSE)


@dataclass
class _Held:
    """A trial that this process holds."""

    holder: Holder
    renewed: float
    is_lost: bool = False


def _patient(name: str) -> Any:
    method = getattr(SharedStorage, name)

    @functools.wraps(method)
    def call(self: SharedStorage, *arguments: Any, **more: Any) -> Any:
        return self.patiently(functools.partial(method, self), *arguments, **more)

    return call


for _name in _CALLS:
    setattr(SharedStorage, _name, _patient(_name))


def _is_away(error: Exception) -> bool:
    """Whether an error says that the server, or the lock of an SQLite file, may be available later."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    if isinstance(cause, DBAPIError) and "sqlite3" in type(cause.orig).__module__:
        return "locked" in str(cause.orig)
    # Optuna tries a failed query in another way first, in the transaction that has lost its connection.
    is_lost = isinstance(cause, OperationalError | InterfaceError | PendingRollbackError)
    return is_lost or getattr(cause, "connection_invalidated", False)


def _first_line(error: Exception) -> str:
    return str(error.__cause__ or error).strip().split("\n")[0]


def _holder(trial: models.TrialModel, session: Session) -> Holder | None:
    found = models.TrialUserAttributeModel.find_by_trial_and_key(trial, "holder", session)
    return None if found is None else json.loads(str(found.value_json))


def _lock_at_begin(engine: Any) -> None:
    """Let every transaction of an SQLite file begin with the write lock.

    Optuna reads a trial's state and then sets it; SQLite has no row locks, and two workers could start one trial.
    """

    @event.listens_for(engine, "connect")
    def _no_own_begin(connection: Any, record: Any) -> None:
        # The driver would begin transactions itself, and late.
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()
