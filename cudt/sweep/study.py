"""The trials of a sweep in Optuna: one study for each arm in each setting.

A trial is stored before its run begins, and its result when the run ends. A sweep that resumes takes over the trials
that an earlier process left running, so no cell is drawn twice. Facts for which Optuna has no column are stored as
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

from cudt.sweep.definition import Parameters, Sweep, setting_name
from cudt.sweep.search import Range, Scalar, combinations, values_of

#: Draws of settings that were drawn before, after which the sampler is bypassed.
_MAX_REPEATS = 5
#: Combinations up to which those not drawn yet are listed.
_MAX_LISTED = 10_000
_SEEDS = IntDistribution(0, 2**32 - 1)


@dataclass(frozen=True)
class Trial:
    """A trial of a study: waiting, running or ended."""

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
        # Read once: no other process writes to the study during a sweep.
        self._attributes: dict[str, Any] = dict(self.study.user_attrs)
        self._orphans: list[Trial] = []

    def take_over(self, *, retry_failed: bool) -> None:
        """Prepare the trials to run. The caller has the sweep's lock: a running trial was left by a dead process."""
        within = {trial.number for trial in self._counted()}
        for trial in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if trial.number in within and trial.params.keys() == self._distributions.keys():
                self._orphans.append(self._as_trial(trial))
            else:
                # The process was killed while drawing it, or the budget is smaller now.
                self._abandon(trial.number)
        if retry_failed:
            self._requeue_failed()
        there = {trial.user_attrs.get("cell") for trial in self._counted()}
        for cell, parameters in enumerate(self._listed or []):
            if cell not in there:
                self.study.enqueue_trial(parameters, user_attrs={"cell": cell})

    def next(self) -> Trial | None:
        """The next trial to run; None once the budget is spent."""
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
        """Store the facts about a trial, replacing earlier ones."""
        self._attributes[f"trial {number}"] = facts
        self.study.set_user_attr(f"trial {number}", facts)

    def trials(self) -> list[Trial]:
        """Every trial within the budget, in order."""
        return [self._as_trial(trial) for trial in self._counted()]

    def describe(self, trial: Trial) -> str:
        """A trial in one line."""
        return self.sweep.describe(self.setting, self.arm, trial.parameters)

    @property
    def n_orphans(self) -> int:
        """Trials that a dead process left running."""
        return len(self._orphans)

    @property
    def left(self) -> int:
        """Trials that are waiting or running, or not drawn yet."""
        return max(0, self.budget - sum(trial.state.is_finished() for trial in self._counted()))

    def _drawn(self) -> Trial:
        """A trial with new settings: a repetition would be the same run, and waste the budget."""
        # Compared by repr, because True == 1 in Python.
        earlier = {repr(trial.parameters) for trial in self.trials()}
        for _ in range(_MAX_REPEATS):
            trial = self._asked(self._sampler())
            if repr(trial.parameters) not in earlier:
                return trial
            self._abandon(trial.number)
        # The sampler repeats itself. Unseen settings exist: a budget above the number of combinations is refused.
        if unseen := self._unseen(earlier):
            self.study.enqueue_trial(random.Random(self._seed()).choice(unseen))
            return self._asked(RandomSampler())
        while repr((trial := self._asked(RandomSampler(seed=self._seed()))).parameters) in earlier:
            self._abandon(trial.number)
        return trial

    def _unseen(self, earlier: set[str]) -> list[Parameters]:
        """The settings that were not drawn yet, if they can be listed."""
        arm = self.sweep.arm(self.arm)
        if (arm.n_combinations or _MAX_LISTED + 1) > _MAX_LISTED:
            return []
        possible = combinations({key: values_of(searched) for key, searched in arm.search.items()})
        return [parameters for parameters in possible if repr(parameters) not in earlier]

    def _asked(self, sampler: BaseSampler) -> Trial:
        self.study.sampler = sampler
        trial = self.study.ask(self._distributions)
        return Trial(trial.number, "running", self._exact(trial.params), facts=self._facts(trial.number))

    def _abandon(self, number: int) -> None:
        """End a trial that does not count: it is failed, without a reason."""
        self.study.tell(number, state=TrialState.FAIL)

    def _sampler(self) -> BaseSampler:
        if self.sweep.arm(self.arm).sampler == "tpe":
            # Optuna draws its first ten trials at random; with a budget of five, none would be guided by results.
            return TPESampler(seed=self._seed(), n_startup_trials=min(10, max(1, self.budget // 2)))
        return RandomSampler(seed=self._seed())

    def _seed(self) -> int:
        """The seed of the next draw, by its number, so that a resumed sweep continues the sequence."""
        key = f"{self.sweep.search.seed} {self.name} {len(self.study.get_trials(deepcopy=False))}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big")

    def _requeue_failed(self) -> None:
        for trial in self.trials():
            if trial.state == "failed":
                self.remember(trial.number, {**trial.facts, "retried": True})
                if self._listed is None:
                    self.study.enqueue_trial(trial.parameters)

    def _as_trial(self, trial: FrozenTrial) -> Trial:
        states = {TrialState.WAITING: "waiting", TrialState.RUNNING: "running", TrialState.COMPLETE: "finished"}
        # A waiting trial has no parameters yet, except those it was enqueued with.
        parameters = self._exact(trial.params or trial.system_attrs.get("fixed_params", {}))
        score = trial.value if trial.state == TrialState.COMPLETE else None
        return Trial(trial.number, states.get(trial.state, "failed"), parameters, score, self._facts(trial.number))

    def _exact(self, drawn: dict[str, Any]) -> Parameters:
        """Settings as the search file writes them: Optuna's 0.15000000000000002 for 0.15 would be another run."""
        searched = self.sweep.arm(self.arm).search
        ranges = {key: one for key, one in searched.items() if isinstance(one, Range)}
        return {key: ranges[key].snapped(value) if key in ranges else value for key, value in drawn.items()}

    def _counted(self) -> list[FrozenTrial]:
        """The trials within the budget, in order; if the budget was reduced, the last ones no longer count."""
        counted = [trial for trial in self.study.get_trials(deepcopy=False) if self._counts(trial)]
        if self._listed is not None:
            return [trial for trial in counted if trial.user_attrs.get("cell", self.budget) < self.budget]
        return counted[: self.budget]

    def _counts(self, trial: FrozenTrial) -> bool:
        """Whether a trial was neither abandoned nor retried."""
        facts = self._facts(trial.number)
        return trial.state != TrialState.FAIL or ("reason" in facts and not facts.get("retried"))

    def _facts(self, number: int) -> dict[str, Any]:
        return dict(self._attributes.get(f"trial {number}", {}))


def study_name(sweep: Sweep, setting: Parameters, arm: str) -> str:
    """The study's name in the storage."""
    return "/".join(["cudt", sweep.recipe_name, f"{sweep.name}-{sweep.identity()}", setting_name(setting) or "-", arm])


def _distributions(sweep: Sweep, arm: str, listed: list[Parameters] | None) -> dict[str, BaseDistribution]:
    if sweep.arm(arm).sampler == "seeds":
        # Not a list of seeds: Optuna refuses a changed list under the same name, and a budget may grow.
        return {"seed": _SEEDS}
    if listed is not None:
        keys = listed[0].keys()
        return {key: CategoricalDistribution(_each_once([cell[key] for cell in listed])) for key in keys}
    return {key: _distribution(searched) for key, searched in sweep.arm(arm).search.items()}


def _each_once(values: list[Scalar]) -> list[Scalar]:
    # By repr, because True == 1 in Python.
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
