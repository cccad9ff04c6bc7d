"""The trials of a sweep in Optuna: a study for each arm in each setting, in SQLite or wherever a URL says.

A trial stands there before its run begins and is told when it ends. Whoever finds it running and knows that nobody is
at work on it takes it over as it is: a cell is never asked for twice. What Optuna has no column for is kept as
attributes of the study, by the trial's number.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from cudt.errors import UserError
from cudt.sweep.definition import Parameters, Sweep, setting_name
from cudt.sweep.search import Range, Scalar

#: Draws of the same settings again, after which a sampler has nothing new.
_TRIES = 50
#: Seconds between signs of life, and after which there is none.
_BEAT, _SILENCE = 15.0, 90.0

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Trial:
    """A run that a study wants, wanted, or will want."""

    number: int
    state: str
    """waiting, running, finished or failed."""
    parameters: Parameters
    score: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def open_storage(url: str | None) -> optuna.storages.BaseStorage:
    """Where the studies are; None for this process's memory."""
    if url is None:
        return optuna.storages.InMemoryStorage()
    try:
        return optuna.storages.RDBStorage(url)
    except Exception as error:  # SQLAlchemy and the drivers raise many kinds
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"--storage {_without_password(url)}: {reason}") from None


def _without_password(url: str) -> str:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return "(not a URL)"


class ArmStudy:
    """The trials of one arm in one setting."""

    def __init__(self, sweep: Sweep, setting: Parameters, arm: str, storage: optuna.storages.BaseStorage) -> None:
        self.sweep, self.setting, self.arm = sweep, setting, arm
        self.budget = sweep.budget(arm)
        self.name = "/".join(
            ["cudt", sweep.recipe_name, f"{sweep.name}-{sweep.identity()}", setting_name(setting) or "-", arm]
        )
        self.study = optuna.create_study(
            storage=storage, study_name=self.name, direction=sweep.search.score.direction, load_if_exists=True
        )
        self._listed = sweep.listed(arm)
        self._distributions = _distributions(sweep, arm, self._listed)
        # Read once: nobody else writes while we are at work.
        self._attributes: dict[str, Any] = dict(self.study.user_attrs)
        self._orphans: list[Trial] = []
        self.is_exhausted = False

    def take_over(self, *, retry_failed: bool) -> None:
        """Make ready what is to be done; trials that run are nobody's, because whoever calls this is alone."""
        for trial in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if trial.params.keys() == self._distributions.keys():
                self._orphans.append(self._told(trial))
            else:
                # Killed while it was drawn.
                self.study.tell(trial.number, state=TrialState.FAIL)
        if retry_failed:
            self._give_back_failed()
        there = {trial.user_attrs.get("cell") for trial in self.study.get_trials(deepcopy=False) if self._counts(trial)}
        for cell, parameters in enumerate(self._listed or []):
            if cell not in there:
                self.study.enqueue_trial(parameters, user_attrs={"cell": cell})

    def next(self) -> Trial | None:
        """A trial to run now; None where the budget is spent."""
        if self._orphans:
            return self._orphans.pop(0)
        if self.study.get_trials(deepcopy=False, states=[TrialState.WAITING]):
            return self._asked()
        while self._listed is None and len(self._counted()) < self.budget and not self.is_exhausted:
            earlier = [trial.params for trial in self._counted()]
            trial = self._asked()
            if trial.parameters not in earlier:
                return trial
            # The same settings are the same run, which would spend the budget on nothing.
            self.study.tell(trial.number, state=TrialState.FAIL)
            self.is_exhausted = len(self.study.get_trials(deepcopy=False)) - len(earlier) >= _TRIES
        return None

    def finish(self, number: int, score: float, facts: dict[str, Any]) -> None:
        self._remember(number, facts)
        self.study.tell(number, score)

    def fail(self, number: int, reason: str, facts: dict[str, Any]) -> None:
        self._remember(number, {**facts, "reason": reason})
        self.study.tell(number, state=TrialState.FAIL)

    def trials(self) -> list[Trial]:
        """Every trial that counts, in order."""
        return [self._told(trial) for trial in self.study.get_trials(deepcopy=False) if self._counts(trial)]

    @property
    def left(self) -> int:
        """Runs that are to be done or under way."""
        done = sum(trial.state.is_finished() for trial in self._counted())
        known = len(self._listed) if self._listed is not None else self.budget
        return 0 if self.is_exhausted else max(0, known - done)

    def _asked(self) -> Trial:
        self.study.sampler = self._sampler()
        trial = self.study.ask(self._distributions)
        return Trial(trial.number, "running", dict(trial.params))

    def _sampler(self) -> BaseSampler:
        """A sampler for the next trial: seeded by its number, so that a sweep that goes on does not draw anew."""
        place = f"{self.sweep.search.seed} {self.name} {len(self.study.get_trials(deepcopy=False))}"
        seed = int.from_bytes(hashlib.blake2b(place.encode(), digest_size=4).digest(), "big")
        if self.sweep.arm(self.arm).sampler == "tpe":
            # Optuna draws its first ten at random; with a budget of five, none would be chosen by results.
            return TPESampler(seed=seed, n_startup_trials=min(10, max(1, self.budget // 2)))
        return RandomSampler(seed=seed)

    def _give_back_failed(self) -> None:
        for trial in self.trials():
            if trial.state == "failed":
                self._remember(trial.number, {**trial.facts, "retried": True})
                if self._listed is None:
                    self.study.enqueue_trial(trial.parameters)

    def _told(self, trial: FrozenTrial) -> Trial:
        states = {TrialState.WAITING: "waiting", TrialState.RUNNING: "running", TrialState.COMPLETE: "finished"}
        # A trial that waits has none yet but those that it was given.
        parameters = trial.params or dict(trial.system_attrs.get("fixed_params", {}))
        score = trial.value if trial.state == TrialState.COMPLETE else None
        return Trial(trial.number, states.get(trial.state, "failed"), parameters, score, self._facts(trial.number))

    def _counted(self) -> list[FrozenTrial]:
        return [trial for trial in self.study.get_trials(deepcopy=False) if self._counts(trial)]

    def _counts(self, trial: FrozenTrial) -> bool:
        """Whether a trial is one of the budget's: not what was abandoned, or is tried again."""
        facts = self._facts(trial.number)
        return trial.state != TrialState.FAIL or ("reason" in facts and not facts.get("retried"))

    def _facts(self, number: int) -> dict[str, Any]:
        return dict(self._attributes.get(f"trial {number}", {}))

    def _remember(self, number: int, facts: dict[str, Any]) -> None:
        self._attributes[f"trial {number}"] = facts
        self.study.set_user_attr(f"trial {number}", facts)


def _distributions(sweep: Sweep, arm: str, listed: list[Parameters] | None) -> dict[str, BaseDistribution]:
    if listed is not None:
        keys = listed[0].keys()
        return {key: CategoricalDistribution(_each_once([cell[key] for cell in listed])) for key in keys}
    return {key: _distribution(searched) for key, searched in sweep.arm(arm).search.items()}


def _each_once(values: list[Scalar]) -> list[Scalar]:
    # True and 1 are equal, and not the same.
    return list({repr(value): value for value in values}.values())


def _distribution(searched: Range | list[Scalar]) -> BaseDistribution:
    if not isinstance(searched, Range):
        return CategoricalDistribution(searched)
    if searched.type == "int":
        step = int(searched.step or 1)
        high = searched.values()[-1] if step > 1 else searched.high
        return IntDistribution(int(searched.low), int(high or 0), log=searched.log, step=step)
    if searched.step is not None:
        values = [float(value or 0) for value in searched.values()]
        return FloatDistribution(values[0], values[-1], step=searched.step)
    return FloatDistribution(searched.low, searched.high, log=searched.log)


class Keeper:
    """Keeps a second `cudt sweep` off the same studies, wherever it runs; a dead one's place can be taken."""

    def __init__(self, study: ArmStudy) -> None:
        self._study = study.study
        self._last = 0.0

    def __enter__(self) -> Keeper:
        other = self._study.user_attrs.get("keeper")
        if other is not None and _is_alive(other):
            raise UserError(
                f"another `cudt sweep` is at work on this sweep's studies (process {other['process']} on "
                f"{other['host']}); let it finish, or end it first"
            )
        self.beat()
        return self

    def __exit__(self, *exception: object) -> None:
        self._study.set_user_attr("keeper", None)

    def beat(self) -> None:
        """Say that we are alive, every now and then."""
        if time.monotonic() - self._last > _BEAT or not self._last:
            self._last = time.monotonic()
            me = {"host": socket.gethostname(), "process": os.getpid(), "seen": time.time()}
            self._study.set_user_attr("keeper", me)


def _is_alive(keeper: dict[str, Any]) -> bool:
    if time.time() - keeper["seen"] > _SILENCE:
        return False
    if keeper["host"] != socket.gethostname():
        return True
    if keeper["process"] == os.getpid():
        # A container that is started again has the same name and numbers.
        return False
    try:
        os.kill(keeper["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
