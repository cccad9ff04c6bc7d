"""The trials of a sweep in Optuna: a study for each arm in each setting.

A trial stands there before its run begins and is told when it ends. Whoever finds it running and knows that nobody is
at work on it takes it over as it is: a cell is never asked for twice. What Optuna has no column for is kept as
attributes of the study, by the trial's number.
"""

from __future__ import annotations

import hashlib
import random
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

from cudt.sweep import checks
from cudt.sweep.definition import Parameters, Sweep, setting_name
from cudt.sweep.search import Range, Scalar, combinations, values_of

#: Draws of the same settings in a row, after which a sampler is not asked any more.
_REPEATS = 5
#: Combinations that are few enough to look for one that was not drawn.
_FEW = 10_000
_SEEDS = IntDistribution(0, 2**32 - 1)


@dataclass(frozen=True)
class Trial:
    """A run that a study wants, wanted, or will want."""

    number: int
    state: str
    """waiting, running, finished or failed."""
    parameters: Parameters
    score: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class ArmStudy:
    """The trials of one arm in one setting."""

    def __init__(self, sweep: Sweep, setting: Parameters, arm: str, storage: optuna.storages.BaseStorage) -> None:
        self.sweep, self.setting, self.arm = sweep, setting, arm
        self.name = study_name(sweep, setting, arm)
        self.study = optuna.create_study(
            storage=storage, study_name=self.name, direction=sweep.search.score.direction, load_if_exists=True
        )
        self._listed = sweep.listed(arm)
        self.budget = sweep.budget(arm)
        self._distributions = _distributions(sweep, arm, self._listed)
        # Read once: nobody else writes while we are at work.
        self._attributes: dict[str, Any] = dict(self.study.user_attrs)
        self._orphans: list[Trial] = []

    def take_over(self, *, retry_failed: bool) -> None:
        """Make ready what is to be done; trials that run are nobody's, because whoever calls this is alone."""
        within = {trial.number for trial in self._counted()}
        for trial in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if trial.number in within and trial.params.keys() == self._distributions.keys():
                self._orphans.append(self._told(trial))
            else:
                # Killed while it was drawn, or more than the budget now allows.
                self._abandon(trial.number)
        if retry_failed:
            self._give_back_failed()
        there = {trial.user_attrs.get("cell") for trial in self._counted()}
        for cell, parameters in enumerate(self._listed or []):
            if cell not in there:
                self.study.enqueue_trial(parameters, user_attrs={"cell": cell})

    def next(self) -> Trial | None:
        """A trial to run now; None where the budget is spent."""
        if self._orphans:
            return self._orphans.pop(0)
        while waiting := self.study.get_trials(deepcopy=False, states=[TrialState.WAITING]):
            is_wanted = any(trial.number == waiting[0].number for trial in self._counted())
            trial = self._asked(RandomSampler())
            if is_wanted:
                return trial
            self._abandon(trial.number)
        return self._drawn() if self._listed is None and len(self._counted()) < self.budget else None

    def finish(self, number: int, score: float, facts: dict[str, Any]) -> None:
        self.remember(number, facts)
        self.study.tell(number, score)

    def fail(self, number: int, reason: str, facts: dict[str, Any]) -> None:
        self.remember(number, {**facts, "reason": reason})
        self.study.tell(number, state=TrialState.FAIL)

    def remember(self, number: int, facts: dict[str, Any]) -> None:
        """Keep what is known about a trial, in place of what was."""
        self._attributes[f"trial {number}"] = facts
        self.study.set_user_attr(f"trial {number}", facts)

    def trials(self) -> list[Trial]:
        """Every trial that counts, in order."""
        return [self._told(trial) for trial in self._counted()]

    def describe(self, trial: Trial) -> str:
        """A trial in a line."""
        return self.sweep.describe(self.setting, self.arm, trial.parameters)

    @property
    def n_orphans(self) -> int:
        """Trials that somebody began, and nobody is at work on."""
        return len(self._orphans)

    @property
    def left(self) -> int:
        """Runs that are to be done or under way."""
        return max(0, self.budget - sum(trial.state.is_finished() for trial in self._counted()))

    def _drawn(self) -> Trial:
        """A trial with settings that no other has: the same settings are the same run, and would spend the budget."""
        # By how they are written: True and 1 are equal, and not the same.
        earlier = {repr(trial.parameters) for trial in self.trials()}
        for _ in range(_REPEATS):
            trial = self._asked(self._sampler())
            if repr(trial.parameters) not in earlier:
                return trial
            self._abandon(trial.number)
        # The sampler insists on what it has seen; a search file never asks for more than there is.
        if unseen := self._unseen(earlier):
            self.study.enqueue_trial(random.Random(self._seed()).choice(unseen))
            return self._asked(RandomSampler())
        while repr((trial := self._asked(RandomSampler(seed=self._seed()))).parameters) in earlier:
            self._abandon(trial.number)
        return trial

    def _unseen(self, earlier: set[str]) -> list[Parameters]:
        """What was not drawn yet, where that can be listed."""
        arm = self.sweep.arm(self.arm)
        if (checks.cells(arm) or _FEW + 1) > _FEW:
            return []
        possible = combinations({key: values_of(searched) for key, searched in arm.search.items()})
        return [parameters for parameters in possible if repr(parameters) not in earlier]

    def _asked(self, sampler: BaseSampler) -> Trial:
        self.study.sampler = sampler
        trial = self.study.ask(self._distributions)
        return Trial(trial.number, "running", self._exact(trial.params), facts=self._facts(trial.number))

    def _abandon(self, number: int) -> None:
        """End a trial that is none of the budget's: it failed, and for no reason."""
        self.study.tell(number, state=TrialState.FAIL)

    def _sampler(self) -> BaseSampler:
        if self.sweep.arm(self.arm).sampler == "tpe":
            # Optuna draws its first ten at random; with a budget of five, none would be chosen by results.
            return TPESampler(seed=self._seed(), n_startup_trials=min(10, max(1, self.budget // 2)))
        return RandomSampler(seed=self._seed())

    def _seed(self) -> int:
        """Of the next draw: by its number, so that a sweep that goes on does not draw anew."""
        place = f"{self.sweep.search.seed} {self.name} {len(self.study.get_trials(deepcopy=False))}"
        return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=4).digest(), "big")

    def _give_back_failed(self) -> None:
        for trial in self.trials():
            if trial.state == "failed":
                self.remember(trial.number, {**trial.facts, "retried": True})
                if self._listed is None:
                    self.study.enqueue_trial(trial.parameters)

    def _told(self, trial: FrozenTrial) -> Trial:
        states = {TrialState.WAITING: "waiting", TrialState.RUNNING: "running", TrialState.COMPLETE: "finished"}
        # A trial that waits has none yet but those that it was given.
        parameters = self._exact(trial.params or trial.system_attrs.get("fixed_params", {}))
        score = trial.value if trial.state == TrialState.COMPLETE else None
        return Trial(trial.number, states.get(trial.state, "failed"), parameters, score, self._facts(trial.number))

    def _exact(self, drawn: dict[str, Any]) -> Parameters:
        """Settings as they were written: Optuna adds up steps in binary, and 0.15000000000000002 is another run."""
        searched = self.sweep.arm(self.arm).search
        ranges = {key: one for key, one in searched.items() if isinstance(one, Range)}
        return {key: ranges[key].snapped(value) if key in ranges else value for key, value in drawn.items()}

    def _counted(self) -> list[FrozenTrial]:
        """The trials of the budget, in order; a smaller budget than before forgets the last ones."""
        counted = [trial for trial in self.study.get_trials(deepcopy=False) if self._counts(trial)]
        if self._listed is not None:
            return [trial for trial in counted if trial.user_attrs.get("cell", self.budget) < self.budget]
        return counted[: self.budget]

    def _counts(self, trial: FrozenTrial) -> bool:
        """Whether a trial is none that was abandoned, or is tried again."""
        facts = self._facts(trial.number)
        return trial.state != TrialState.FAIL or ("reason" in facts and not facts.get("retried"))

    def _facts(self, number: int) -> dict[str, Any]:
        return dict(self._attributes.get(f"trial {number}", {}))


def study_name(sweep: Sweep, setting: Parameters, arm: str) -> str:
    """As others find it in the storage."""
    return "/".join(["cudt", sweep.recipe_name, f"{sweep.name}-{sweep.identity()}", setting_name(setting) or "-", arm])


def _distributions(sweep: Sweep, arm: str, listed: list[Parameters] | None) -> dict[str, BaseDistribution]:
    if sweep.arm(arm).sampler == "seeds":
        # Not a list of them: Optuna refuses another list under the same name, and a budget may grow.
        return {"seed": _SEEDS}
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
        high = searched.low + step * (searched.count - 1)
        return IntDistribution(int(searched.low), int(high), log=searched.log, step=step)
    if searched.step is not None:
        high = float(searched.snapped(searched.high) or 0.0)
        return FloatDistribution(searched.low, high, step=searched.step)
    return FloatDistribution(searched.low, searched.high, log=searched.log)
