"""The trials of a sweep in Optuna: one study for each arm in each setting, in an SQLite file for
one machine, or PostgreSQL for any number.

A cell is a run to train. Each is enqueued as a trial with the cell's number as user attribute
`cell`, and workers on any machine take waiting trials. A trial that was interrupted, or whose
worker's heartbeat has stopped, fails without a `reason`, and its cell is enqueued again with what
was drawn for it. So a cell may have several trials; its first one with a result counts. Other
attributes of a trial: `facts`, what the tables say; `reason`, why its run has failed or was pruned;
`returned`, of a trial that its worker gave back.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    NopPruner,
    SuccessiveHalvingPruner,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from cudt.sweep.search import Range, Scalar, Settings, Sweep, combinations, from_texts, label
from cudt.utils.errors import UserError

#: Seconds between two heartbeats of a trial, and after how many missed ones it is repeated.
HEARTBEAT, MISSED = 20, 6
#: How often a cell is repeated whose worker died: the run itself may be what kills it.
MOST_REPEATS = 5
#: What a storage raises that is away, locked or full.
STORAGE_ERRORS = (StorageInternalError, SQLAlchemyError)
#: Heartbeats are stored without a time zone, so all sessions must have the same one; a server that
#: gives no answer is an error after 20 seconds.
_SERVER = {"options": "-c timezone=utc", "connect_timeout": 10, "tcp_user_timeout": 20_000}

State = Literal["waiting", "running", "lost", "finished", "pruned", "failed"]
ENDED: tuple[State, ...] = ("finished", "pruned", "failed")
#: In the order in which the trials of a cell count.
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}

#: Their steps are epochs, from 1.
_PRUNERS: dict[str | None, Callable[[], BasePruner]] = {
    None: NopPruner,
    "median": partial(MedianPruner, n_startup_trials=3),
    "halving": partial(SuccessiveHalvingPruner, min_resource=1),
    "hyperband": HyperbandPruner,
}

# Optuna would log every trial that fails, and warn of heartbeats.
optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=ExperimentalWarning)


# ---------------------------------------------------------------- storages


def own_storage(folder: Path) -> str:
    """The URL of the SQLite file in a sweep's folder."""
    return f"sqlite:///{(folder / 'study.db').resolve()}"


def open_storage(url: str) -> RDBStorage:
    """The storage of a URL, which records heartbeats."""
    is_sqlite = url.startswith("sqlite:")
    try:
        storage = RDBStorage(
            re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url),
            {"pool_pre_ping": True, "connect_args": {"timeout": 60} if is_sqlite else _SERVER},
            heartbeat_interval=HEARTBEAT,
            grace_period=MISSED * HEARTBEAT,
        )
    except Exception as error:  # SQLAlchemy and the drivers raise many types
        reason = str(error).strip().split("\n")[0]
        where = "--storage or CUDT_STORAGE, like postgresql://user@host/name"
        raise UserError(f"cannot open the storage of the sweep ({where}): {reason}") from error
    if is_sqlite:
        # It has no row locks, so that two workers could start one trial: every transaction begins
        # with the lock of the whole file, and not by the driver, which begins them late.
        event.listen(storage.engine, "connect", _without_transactions)
        event.listen(storage.engine, "begin", lambda one: one.exec_driver_sql("BEGIN IMMEDIATE"))
        storage.engine.dispose()
    return storage


def _without_transactions(connection: Any, record: Any) -> None:
    connection.isolation_level = None


def existing(url: str) -> BaseStorage | None:
    """The storage of a URL; None for an SQLite file that does not exist, which is not created."""
    before, _, path = url.partition(":///")
    return open_storage(url) if before != "sqlite" or Path(path).is_file() else None


def is_of_storage(error: BaseException | None) -> bool:
    """Whether a storage that is away, locked or full has led to an error."""
    # While Optuna handles such an error, it may run into others.
    while error is not None and not isinstance(error, STORAGE_ERRORS):
        error = error.__cause__ or error.__context__
    return error is not None


def sweeps_in(storage: BaseStorage | None) -> dict[str, Sweep]:
    """The sweeps of a storage by the names of their first studies."""
    found = [] if storage is None else optuna.get_all_study_summaries(storage)
    texts = {one.study_name: one.user_attrs.get("sweep") for one in found}
    return {name: from_texts(text) for name, text in texts.items() if text is not None}


# ---------------------------------------------------------------- cells


class SurplusError(Exception):
    """A trial that does not count: its cell has a result, or runs elsewhere."""


@dataclass(frozen=True)
class Cell:
    """A run to train, as its trials say."""

    attempts: list[FrozenTrial]
    listed: Settings | None
    """Its searched settings; None if they are drawn."""

    @property
    def trial(self) -> FrozenTrial:
        """The trial that counts: the first one with a result, else one that may have it, else the
        last failure with a reason.
        """
        for state in _STATES:
            if found := [one for one in self.attempts if one.state == state]:
                return found[0]
        return [*self.attempts, *(one for one in self.attempts if "reason" in one.user_attrs)][-1]

    @property
    def drawn(self) -> Settings:
        """What was drawn for it."""
        return next((one.params for one in reversed(self.attempts) if one.params), {})

    @property
    def settings(self) -> Settings | None:
        """Its searched settings; None if they are not drawn yet."""
        return self.drawn or None if self.listed is None else self.listed

    @property
    def facts(self) -> dict[str, Any]:
        """What the tables say of it, with the time of all its trials."""
        spent = sum((one.duration or timedelta() for one in self.attempts), timedelta())
        known = self.trial.user_attrs
        died = "its workers died; see logs/" if self.state == "failed" else ""
        reason = {"reason": why} if (why := known.get("reason", died)) else {}
        return {"seconds": round(spent.total_seconds(), 1), **reason, **known.get("facts", {})}

    @property
    def state(self) -> State:
        """Lost is what has to be enqueued again."""
        if self.trial.state != TrialState.FAIL:
            return _STATES[self.trial.state]
        deaths = sum(not one.user_attrs.keys() & {"reason", "returned"} for one in self.attempts)
        return "failed" if "reason" in self.trial.user_attrs or deaths > MOST_REPEATS else "lost"


class ArmStudy:
    """The trials of one arm in one setting."""

    def __init__(self, sweep: Sweep, setting: Settings, name: str, storage: BaseStorage) -> None:
        self.sweep, self.setting, self.name = sweep, setting, name
        self.arm, self.budget = sweep.search.arms[name], sweep.budget(name)
        parts = ["cudt", sweep.recipe_name, sweep.title, label(setting) or "-", name]
        self.study = optuna.create_study(
            storage=storage,
            study_name="/".join(parts),
            direction=sweep.search.score.direction,
            pruner=_PRUNERS[self.arm.pruner](),
            load_if_exists=True,
        )

    @cached_property
    def listed(self) -> list[Settings | None]:
        """The settings of every cell; None for those that are drawn one by one."""
        if self.arm.sampler == "seeds":
            first = self.sweep.recipe(self.setting, self.name, {}).settings.seed
            return [{"seed": first + number} for number in range(self.budget)]
        is_grid = self.arm.sampler == "grid"
        return [*combinations(self.arm.probes)] if is_grid else [None] * self.budget

    def cells(self) -> dict[int, Cell]:
        """The cells within the budget that have a trial."""
        attempts: dict[int, list[FrozenTrial]] = defaultdict(list)
        for trial in self.study.get_trials(deepcopy=False):
            number = trial.user_attrs.get("cell", self.budget)
            if "retry" in trial.user_attrs:
                # What failed before no longer counts.
                attempts[number].clear()
            attempts[number].append(trial)
        numbers = range(self.budget)
        return {one: Cell(attempts[one], self.listed[one]) for one in numbers if one in attempts}

    @property
    def n_left(self) -> int:
        """Cells without a result."""
        return self.budget - sum(one.state in ENDED for one in self.cells().values())

    def describe(self, settings: Settings | None) -> str:
        """A cell in one line."""
        return label(self.setting, self.name, settings)

    def enqueue(self, *, retry_failed: bool = False) -> None:
        """Enqueue the cells that have no trial, that are lost, and that failed if they are to be
        retried.
        """
        known, again = self.cells(), ["lost", "failed"] if retry_failed else ["lost"]
        for number in range(self.budget):
            cell = known.get(number)
            if cell is None or cell.state in again:
                drawn = {} if cell is None else cell.drawn
                is_retry = cell is not None and cell.state == "failed"
                attributes = {"cell": number, **({"retry": True} if is_retry else {})}
                self.study.enqueue_trial(drawn, user_attrs=attributes)

    def begin(self, trial: optuna.Trial) -> Settings:
        """The settings of a trial that this process has started, drawn if they are not listed; a
        SurplusError if it does not count.
        """
        number = trial.user_attrs.get("cell", self.budget)
        cell = self.cells().get(number)
        if cell is None or cell.trial.number != trial.number:
            raise SurplusError
        if cell.listed is not None:
            return cell.listed
        self.study.sampler = self._sampler(number)
        return {key: _suggested(trial, key, one) for key, one in self.arm.search.items()}

    def _sampler(self, number: int) -> BaseSampler:
        """A sampler for one cell, so that a resumed sweep draws what it would have."""
        key = f"{self.sweep.search.seed} {self.study.study_name} {number}"
        seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big")
        if self.arm.sampler == "random":
            return RandomSampler(seed=seed)
        # Optuna draws its first ten trials at random; with a budget of five, none would be guided
        # by results. The liar keeps workers that draw at the same time apart.
        first = min(10, max(1, self.budget // 2))
        return TPESampler(seed=seed, n_startup_trials=first, constant_liar=True)


def _suggested(trial: optuna.Trial, key: str, searched: Range | list[Scalar]) -> Scalar:
    if isinstance(searched, list):
        return trial.suggest_categorical(key, searched)
    return trial.suggest_float(key, searched.low, searched.high, log=searched.log)


def studies_of(sweep: Sweep, storage: BaseStorage) -> list[ArmStudy]:
    """The study of each arm in each setting; the first one has the sweep's definition."""
    pairs = [(setting, arm) for setting in sweep.settings for arm in sweep.search.arms]
    studies = [ArmStudy(sweep, *pair, storage) for pair in pairs]
    texts = sweep.texts()
    if studies[0].study.user_attrs.get("sweep") != texts:
        studies[0].study.set_user_attr("sweep", texts)
    return studies


def next_waiting(studies: Sequence[ArmStudy]) -> ArmStudy | None:
    """The study to take a trial from: sweep by sweep and setting by setting, in each the arm that
    has begun the fewest, so that a stopped sweep has spent equally.
    """
    for _, arms in groupby(studies, lambda one: (one.sweep.title, label(one.setting))):
        begun = []
        for arm in arms:
            states = [cell.state for cell in arm.cells().values()]
            if (n_waiting := states.count("waiting")) > 0:
                begun.append((len(states) - n_waiting, arm))
        if begun:
            return min(begun, key=itemgetter(0))[1]
    return None
