"""Optuna's database storage for many workers: trials have holders, calls wait for a server that is
away.

A trial that a worker cannot finish goes back to WAITING, so a cell stays one trial however many
workers die. Optuna's own way (fail it, add a copy) loses the cell if the process dies between the
two, and renumbers it. A trial is started, ended and given back in one transaction each, with a look
at its holder: two processes that find the same dead worker do not give the trial back twice, and a
worker that was thought dead does not end the trial of another one.
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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import func
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, selectinload

from cudt.sweep import database
from cudt.sweep.holder import Holder, new_holder

#: Seconds between two heartbeats of a running trial; CUDT_HEARTBEAT sets it.
_HEARTBEAT = 20
#: Heartbeats that may be missing before others take the trial, and before its holder stops by
#: itself.
_GRACE, _FENCE = 6, 4
#: The longest pause in seconds between two attempts to reach a server that is away.
_LONGEST_PAUSE = 10.0
#: Seconds for which a heartbeat is not repeated: Optuna records one for a trial that was started
#: just now.
_FRESH = 0.5
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
    "set_trial_user_attr",
    "set_trial_system_attr",
    "set_trial_intermediate_value",
    "get_trial_id_from_study_id_trial_number",
    "get_trial",
    "_get_trials",
    "_start",
    "_end",
    "is_lost",
    "give_back",
    "reserve",
    "enqueue",
    "count_open",
    "stale",
)

_log = logging.getLogger(__name__)


class LostTrialError(BaseException):
    """Another process has taken this process's trial: write nothing more, neither files nor
    results.

    Not an Exception, so that training does not record it as a failure of the run.
    """


@dataclass(frozen=True)
class Stale:
    """A running trial whose holder gave no sign of life for the grace period."""

    trial_id: int
    holder: Holder | None


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
            super().__init__(
                url, engine_kwargs, heartbeat_interval=interval, grace_period=_GRACE * interval
            )
        database.prepare(self.engine)

    # ------------------------------------------------------------ holding a trial

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Set a trial's state; whoever sets it to RUNNING becomes its holder, and nobody else may
        end it.
        """
        if state == TrialState.RUNNING:
            # Made once: if the answer to a commit is lost, the second attempt recognises its
            # holder.
            return bool(self._start(trial_id, new_holder()))
        if (held := self._of(trial_id)) is None:
            return bool(self.patiently(super().set_trial_state_values, trial_id, state, values))
        return bool(self._end(trial_id, held, state, values or ()))

    def _start(self, trial_id: int, holder: Holder) -> bool:
        moment = time.monotonic()
        with self._transaction() as session:
            trial = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
            state: Any = trial.state
            self.check_trial_is_updatable(trial_id, state)
            if state == TrialState.WAITING:
                self._set(session, trial_id, {"holder": holder})
                _beat(session, trial_id)
                trial.state, trial.datetime_start = TrialState.RUNNING, datetime.now()
            elif _holder(trial, session) != holder:
                return False
        with self._lock:
            self._held[trial_id] = _Held(holder, moment)
        return True

    def _end(self, trial_id: int, held: _Held, state: TrialState, values: Sequence[float]) -> bool:
        """End a trial that this process started, with the attributes of `add_at_end`; False if
        another one has it.
        """
        with self._transaction() as session:
            trial = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
            if _holder(trial, session) != held.holder or trial.state == TrialState.WAITING:
                held.is_lost = True
                return False
            # Ended by this process if the answer to an earlier attempt was lost.
            if trial.state == TrialState.RUNNING:
                for objective, value in enumerate(values):
                    self._set_trial_value_without_commit(session, trial, objective, value)
                self._set(session, trial_id, held.at_end)
                trial.state, trial.datetime_complete = state, datetime.now()
        return True

    def add_at_end(self, trial_id: int, attributes: dict[str, Any]) -> None:
        """Let a trial that this process started have some attributes when it ends; they are stored
        in one with that.
        """
        if (held := self._of(trial_id)) is not None:
            held.at_end |= attributes

    def add_at_heartbeat(self, trial_id: int, attributes: dict[str, Any]) -> None:
        """Let the next heartbeat of a trial store some attributes: training does not wait for the
        storage.
        """
        if (held := self._of(trial_id)) is not None:
            held.at_beat = attributes

    def record_heartbeat(self, trial_id: int) -> None:
        """Record a heartbeat and notice if another process has taken the trial.

        An error is logged and not raised: it would end Optuna's heartbeat thread, and the trial
        would look dead.
        """
        held, moment = self._of(trial_id), time.monotonic()
        if held is None or moment - held.renewed < _FRESH:
            return
        try:
            with self._transaction() as session:
                is_lost = not _is_held(session, trial_id, held.holder)
                if not is_lost:
                    _beat(session, trial_id)
                    self._set(session, trial_id, held.at_beat)
        except Exception as error:  # drivers raise many types
            _log.warning("no heartbeat for trial %d: %s", trial_id, database.first_line(error))
            return
        held.is_lost, held.renewed = is_lost, moment

    def is_lost(self, trial_id: int) -> bool:
        """Whether another process has taken a trial that this process started; reads the
        database.
        """
        held = self._of(trial_id)
        with self._transaction() as session:
            return held is not None and not _is_held(session, trial_id, held.holder)

    def was_lost(self, trial_id: int) -> bool:
        """Whether this process has found that another one has taken the trial."""
        held = self._of(trial_id)
        return held is not None and held.is_lost

    def is_unrenewed(self, trial_id: int) -> bool:
        """Whether a trial has had no heartbeat for so long that others are about to take it."""
        held = self._of(trial_id)
        return held is not None and time.monotonic() - held.renewed > _FENCE * heartbeat_interval()

    def may_be_lost(self, trial_id: int) -> bool:
        """Whether a trial has had no heartbeat for so long that another process may have taken
        it.
        """
        held = self._of(trial_id)
        return held is not None and time.monotonic() - held.renewed > _GRACE * heartbeat_interval()

    def _of(self, trial_id: int) -> _Held | None:
        with self._lock:
            return self._held.get(trial_id)

    def reserve(self, trial_id: int, key: str, value: Any) -> bool:
        """Give a trial of this process an attribute that no two unfinished trials have; returns
        whether it has it.

        Raises LostTrialError if another process has taken the trial.
        """
        attribute, state = models.TrialUserAttributeModel, models.TrialModel.state
        with self._transaction() as session:
            # One process at a time; every storage has this row.
            session.query(models.VersionInfoModel).with_for_update().one()
            others = session.query(attribute.trial_id).join(models.TrialModel)
            same = others.filter(attribute.key == key, attribute.value_json == json.dumps(value))
            is_open = state.in_((TrialState.WAITING, TrialState.RUNNING))
            if same.filter(is_open, attribute.trial_id != trial_id).first() is not None:
                return False
            held = self._of(trial_id)
            if held is not None and not _is_held(session, trial_id, held.holder):
                raise LostTrialError
            self._set(session, trial_id, {key: value})
        return True

    # ------------------------------------------------------------ waiting trials

    def enqueue(self, study_id: int, trials: Sequence[FrozenTrial], known: int) -> bool:
        """Add all trials or, if the study has others than the `known` first ones by now, none;
        returns whether.

        So processes that begin a sweep at the same time number its trials as one process would.
        """
        with self._transaction() as session:
            models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
            if session.query(models.TrialModel).filter_by(study_id=study_id).count() != known:
                return False
            for trial in trials:
                self._get_prepared_new_trial(study_id, trial, session)
        return True

    def count_open(self, studies: Collection[int]) -> tuple[int, int]:
        """How many trials of some studies are waiting, and how many are running."""
        trial = models.TrialModel
        with self._transaction() as session:
            counted = (
                session.query(trial.state, func.count())
                .filter(
                    trial.study_id.in_(studies),
                    trial.state.in_((TrialState.WAITING, TrialState.RUNNING)),
                )
                .group_by(trial.state)
            )
            found = {state: int(number) for state, number in counted.all()}
        return found.get(TrialState.WAITING, 0), found.get(TrialState.RUNNING, 0)

    def give_back(
        self, trial_id: int, holder: Holder | None, attributes: dict[str, Any], state: TrialState
    ) -> bool:
        """Let a trial wait again, or end it, if this holder still has it; returns whether it
        had.
        """
        with self._transaction() as session:
            trial = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
            if trial.state != TrialState.RUNNING or _holder(trial, session) != holder:
                return False
            self._set(session, trial_id, {**attributes, "holder": None})
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
                .filter(
                    models.TrialModel.state == TrialState.RUNNING,
                    models.TrialModel.study_id == study_id,
                )
            )
            found = []
            for trial in running.all():
                if any(
                    now.replace(tzinfo=None) - beat.heartbeat > grace for beat in trial.heartbeats
                ):
                    found.append(Stale(int(trial.trial_id), _holder(trial, session)))
            return found

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        # Optuna would fail them before every trial; `stale` and `give_back` let them wait again
        # instead.
        return []

    def _set(self, session: Session, trial_id: int, attributes: dict[str, Any]) -> None:
        for key, value in attributes.items():
            self._set_trial_attr_without_commit(
                session, models.TrialUserAttributeModel, trial_id, key, value
            )

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
        end, pause = time.monotonic() + database.PATIENCE, 0.2
        while True:
            try:
                return call(*arguments, **more)
            except (StorageInternalError, DBAPIError) as error:
                if (
                    getattr(self._is_hasty, "value", False)
                    or not database.is_away(error)
                    or time.monotonic() > end
                ):
                    raise
                _log.warning(
                    "the storage does not answer, trying again: %s", database.first_line(error)
                )
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_PAUSE)


@dataclass
class _Held:
    """A trial that this process holds."""

    holder: Holder
    renewed: float
    """When it had its last heartbeat."""
    is_lost: bool = False
    at_end: dict[str, Any] = field(default_factory=dict)
    """Attributes that are stored when it ends."""
    at_beat: dict[str, Any] = field(default_factory=dict)
    """Attributes that are stored with the next heartbeat."""


def _patient(name: str) -> Any:
    method = getattr(SharedStorage, name)

    @functools.wraps(method)
    def call(self: SharedStorage, *arguments: Any, **more: Any) -> Any:
        return self.patiently(functools.partial(method, self), *arguments, **more)

    return call


for _name in _CALLS:
    setattr(SharedStorage, _name, _patient(_name))


def _holder(trial: models.TrialModel, session: Session) -> Holder | None:
    found = models.TrialUserAttributeModel.find_by_trial_and_key(trial, "holder", session)
    return None if found is None else json.loads(str(found.value_json))


def _is_held(session: Session, trial_id: int, holder: Holder) -> bool:
    """Whether a trial is running and has this holder."""
    trial, attribute = models.TrialModel, models.TrialUserAttributeModel
    found = (
        session.query(trial.state, attribute.value_json)
        .join(attribute)
        .filter(attribute.key == "holder")
    )
    state, value = found.filter(trial.trial_id == trial_id).one()
    return bool(state == TrialState.RUNNING) and json.loads(str(value)) == holder


def _beat(session: Session, trial_id: int) -> None:
    """Store the database's time as that of the trial's last heartbeat."""
    beats = session.query(models.TrialHeartbeatModel).filter_by(trial_id=trial_id)
    if not beats.update({"heartbeat": func.now()}, synchronize_session=False):
        session.add(models.TrialHeartbeatModel(trial_id=trial_id))
