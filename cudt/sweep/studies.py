"""The trials of a sweep in Optuna: one study for each arm in each setting, in an SQLite file for
one machine, or PostgreSQL for any number.

A cell is a run to train. Each is enqueued as a trial with the cell's number as user attribute
`cell`, and workers on any machine take waiting trials. A worker that is interrupted enqueues its
trial again, and Optuna enqueues again those of workers whose heartbeat has stopped. So a cell may
have several trials; its first one with a result counts. Other attributes of a trial: `settings`,
what was drawn, and `facts`, what the tables say, with the `reason` of a failure.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
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
from optuna.storages import BaseStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from cudt.sweep.search import (
    Range,
    Scalar,
    Settings,
    Sweep,
    exact,
    from_texts,
    label,
)
from cudt.utils.errors import UserError

#: Seconds between two heartbeats of a trial, and after how many missed ones it is repeated.
HEARTBEAT, MISSED = 20, 6
#: How often a trial is repeated whose worker died: the run itself may be what kills it.
MOST_REPEATS = 5
#: What a storage raises that is away, locked or full.
STORAGE_ERRORS = (StorageInternalError, SQLAlchemyError)
#: Heartbeats are stored without a time zone, so all sessions must have the same one; a server that
#: gives no answer is an error after 20 seconds.
_SERVER = {"options": "-c timezone=utc", "connect_timeout": 10, "tcp_user_timeout": 20_000}

State = Literal["waiting", "running", "lost", "finished", "pruned", "failed"]
ENDED: tuple[State, ...] = ("finished", "pruned", "failed")
_STATES: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
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
    return URL.create("sqlite", database=str((folder / "study.db").resolve())).render_as_string()


def open_storage(url: str) -> RDBStorage:
    """The storage of a URL, which records heartbeats and repeats the trials of lost workers."""
    try:
        parsed = make_url(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        storage = RDBStorage(
            parsed.render_as_string(hide_password=False),
            {"pool_pre_ping": True, "connect_args": {"timeout": 60} if is_sqlite else _SERVER},
            heartbeat_interval=HEARTBEAT,
            grace_period=MISSED * HEARTBEAT,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(MOST_REPEATS),
        )
    except Exception as error:  # SQLAlchemy and the drivers raise many types
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"cannot open storage {without_password(url)}: {reason}") from error
    if is_sqlite:
        _lock_at_begin(storage.engine)
    return storage


def _lock_at_begin(engine: Any) -> None:
    """Let every transaction of an SQLite file begin with the write lock: it has no row locks, and
    two workers could start one trial.
    """

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        # The driver would begin transactions itself, and late.
        connection.isolation_level = None
        # One log that is synced now and then, instead of files synced at every commit.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()


def existing(url: str) -> BaseStorage | None:
    """The storage of a URL; None for an SQLite file that does not exist, which is not created."""
    before, _, path = url.partition(":///")
    return open_storage(url) if before != "sqlite" or Path(path).is_file() else None


def without_password(url: str) -> str:
    """A URL that can be printed; the password comes from ~/.pgpass or CUDT_STORAGE."""
    try:
        return make_url(url).difference_update_query(["password"]).render_as_string()
    except (SQLAlchemyError, ValueError):
        return "(not a valid URL)"


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

    @property
    def trial(self) -> FrozenTrial:
        """The trial that counts: the first one with a result, else one that may have it, else the
        last failure with a reason.
        """
        found = [
            one for one in self.attempts if one.state in (TrialState.COMPLETE, TrialState.PRUNED)
        ]
        found += [one for one in self.attempts if not one.state.is_finished()]
        found += [one for one in reversed(self.attempts) if "facts" in one.user_attrs]
        return [*found, *self.attempts][0]

    @property
    def settings(self) -> Settings | None:
        """Its searched settings; None if they are not drawn yet."""
        return self.trial.user_attrs.get("settings")

    @property
    def facts(self) -> dict[str, Any]:
        """What the tables say of it, with the time of all its trials."""
        spent = sum((one.duration or timedelta() for one in self.attempts), timedelta())
        died = {"reason": "its workers died; see logs/"} if self.state == "failed" else {}
        known = self.trial.user_attrs.get("facts", {})
        return {"seconds": round(spent.total_seconds(), 1), **died, **known}

    @property
    def state(self) -> State:
        """Lost is what a worker left behind that nobody has enqueued again."""
        if self.trial.state != TrialState.FAIL:
            return _STATES[self.trial.state]
        deaths = sum("facts" not in one.user_attrs for one in self.attempts)
        return "failed" if "facts" in self.trial.user_attrs or deaths > MOST_REPEATS else "lost"


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

    def cells(self) -> dict[int, Cell]:
        """The cells within the budget that have a trial."""
        attempts: dict[int, list[FrozenTrial]] = defaultdict(list)
        for trial in self.study.get_trials(deepcopy=False):
            attempts[trial.user_attrs.get("cell", self.budget)].append(trial)
        return {
            number: Cell(attempts[number]) for number in sorted(attempts) if number < self.budget
        }

    @property
    def n_left(self) -> int:
        """Cells without a result."""
        return self.budget - sum(one.state in ENDED for one in self.cells().values())

    def describe(self, settings: Settings | None) -> str:
        """A cell in one line."""
        return label(self.setting, self.name, settings)

    def listed(self) -> list[Settings | None]:
        """The settings of every cell; None for those that are drawn one by one."""
        arm = self.arm
        if arm.sampler == "seeds":
            first = self.sweep.recipe(self.setting, self.name, {}).settings.seed
            return [{"seed": first + number} for number in range(self.budget)]
        return [*arm.combinations()] if arm.sampler == "grid" else [None] * self.budget

    def enqueue(self, *, retry_failed: bool = False) -> None:
        """Enqueue the cells that have no trial, that are lost, and that failed if they are to be
        retried.
        """
        known = self.cells()
        for number, settings in enumerate(self.listed()):
            if number not in known:
                own = {} if settings is None else {"settings": settings}
                self.study.enqueue_trial({}, user_attrs={"cell": number, **own})
            elif known[number].state in (["lost", "failed"] if retry_failed else ["lost"]):
                self.repeat(known[number].trial)

    def repeat(self, trial: FrozenTrial | optuna.Trial) -> None:
        """Enqueue the cell of a trial again, with what was drawn for it."""
        kept = {key: one for key, one in trial.user_attrs.items() if key in ("cell", "settings")}
        again = optuna.create_trial(
            state=TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs=kept,
        )
        self.study.add_trial(again)

    def begin(self, trial: optuna.Trial) -> Settings:
        """The settings of a trial that this process has started, drawn if it has none; a
        SurplusError if it does not count.
        """
        number = trial.user_attrs.get("cell", self.budget)
        cell = self.cells().get(number)
        running = TrialState.RUNNING
        attempts = [] if cell is None or cell.state in ENDED else cell.attempts
        if next((one.number for one in attempts if one.state == running), None) != trial.number:
            raise SurplusError
        if (settings := trial.user_attrs.get("settings")) is None:
            self.study.sampler = self._sampler(number)
            settings = {key: _suggested(trial, key, one) for key, one in self.arm.search.items()}
            trial.set_user_attr("settings", settings)
        return settings

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
    one = searched.distribution()
    if searched.type == "int":
        low, high, step = int(one.low), int(one.high), int(one.step or 1)
        return trial.suggest_int(key, low, high, step=step, log=one.log)
    value = trial.suggest_float(key, one.low, one.high, step=one.step, log=one.log)
    return value if one.step is None else exact(value)


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
