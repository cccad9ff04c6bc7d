"""The trials of an arm in a setting, in Optuna: which cells there are, and how their settings are
drawn.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Iterable
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage

from cudt.sweep import pruning
from cudt.sweep.definition import Parameters, Sweep, setting_name
from cudt.sweep.queue import Key, NotACellError, Trial, TrialQueue
from cudt.sweep.search import Range, Scalar, combinations, values_of
from cudt.sweep.shared import SharedStorage

#: Draws of settings that were drawn before, after which the sampler is bypassed.
_MAX_REPEATS = 5
#: Combinations up to which those not drawn yet are listed.
_MAX_LISTED = 10_000
#: The attribute of a trial that has the settings it keeps.
_SETTINGS = "settings"
_SEEDS = IntDistribution(0, 2**32 - 1)


class ArmStudy(TrialQueue):
    """The trials of one arm in one setting."""

    def __init__(self, sweep: Sweep, setting: Parameters, arm: str, storage: BaseStorage) -> None:
        super().__init__(storage, study_name(sweep, setting, arm), sweep.search.score.direction)
        self.sweep, self.setting, self.arm = sweep, setting, arm
        self._listed = sweep.listed(arm)
        self.budget = sweep.budget(arm)
        self._distributions = _distributions(sweep, arm, self._listed)
        if (pruner := sweep.arm(arm).pruner) is not None:
            first = sweep.recipe(setting, arm, sweep.first_parameters(arm))
            self.study.pruner = pruning.build(pruner, first.settings.training.epochs)

    def cells(self) -> Iterable[tuple[Key, Parameters]]:
        """The numbers of the cells within the budget; listed cells have parameters, others are
        drawn.
        """
        return enumerate(self._listed if self._listed is not None else [{}] * self.budget)

    def describe(self, trial: Trial) -> str:
        """A trial in one line."""
        return self.sweep.describe(self.setting, self.arm, trial.parameters)

    def draw(self, trial: optuna.Trial) -> None:
        """Draw the settings of a trial that has none yet; a repetition would be the same run, and
        waste the budget.
        """
        self.study.sampler = self._sampler(trial.number)
        for name, distribution in self._distributions.items():
            trial._suggest(name, distribution)
        if self._listed is None and not self._keeps(trial):
            trial.set_user_attr("repeats", True)
            raise NotACellError

    def _keeps(self, trial: optuna.Trial) -> bool:
        """Whether a trial may keep what was drawn: no other one has it, and none that draws it
        later will keep it.
        """
        settings = repr(self.exact(trial.params))
        if isinstance(self.storage, SharedStorage):
            # One that ends after this is in the next reading.
            is_first = self.storage.reserve(trial._trial_id, _SETTINGS, [self.name, settings])
        else:
            trial.set_user_attr(_SETTINGS, [self.name, settings])
            is_first = True
        self.refresh()
        return is_first and settings not in self._earlier(trial.number)

    def exact(self, drawn: dict[str, Any]) -> Parameters:
        """Settings as the search file writes them: Optuna's 0.15000000000000002 for 0.15 would be
        another run.
        """
        searched = self.sweep.arm(self.arm).search
        ranges = {key: one for key, one in searched.items() if isinstance(one, Range)}
        return {
            key: ranges[key].snapped(value) if key in ranges else value
            for key, value in drawn.items()
        }

    def _earlier(self, number: int) -> set[str]:
        """The settings that other trials have and keep."""
        # Compared by repr, because True == 1 in Python.
        others = [trial for _, trial in self._wanted() if trial.number != number]
        return {
            repr(self.exact(trial.params or trial.system_attrs["fixed_params"]))
            for trial in others
            if trial.state.is_finished()
            or _SETTINGS in trial.user_attrs
            or trial.system_attrs.get("fixed_params")
        }

    def _sampler(self, number: int) -> BaseSampler:
        """The sampler of a trial, seeded by its number, so that a resumed sweep continues the
        sequence.
        """
        if self._listed is not None:
            return RandomSampler()
        seed = self._seed(number)
        if self._repeats_before(number) >= _MAX_REPEATS:
            # Unseen settings exist: a budget above the number of combinations is refused.
            unseen = self._unseen(self._earlier(number))
            return (
                _fixed(random.Random(seed).choice(unseen)) if unseen else RandomSampler(seed=seed)
            )
        if self.sweep.arm(self.arm).sampler == "tpe":
            return _tpe(seed, self.budget)
        return RandomSampler(seed=seed)

    def _repeats_before(self, number: int) -> int:
        """The number of draws directly before a trial that repeated earlier settings."""
        count = 0
        for trial in reversed(self._read[:number]):
            if not trial.user_attrs.get("repeats"):
                break
            count += 1
        return count

    def _unseen(self, earlier: set[str]) -> list[Parameters]:
        """The settings that were not drawn yet, if they can be listed."""
        arm = self.sweep.arm(self.arm)
        if (arm.n_combinations or _MAX_LISTED + 1) > _MAX_LISTED:
            return []
        possible = combinations({key: values_of(searched) for key, searched in arm.search.items()})
        return [parameters for parameters in possible if repr(parameters) not in earlier]

    def _seed(self, number: int) -> int:
        key = f"{self.sweep.search.seed} {self.name} {number}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big")


def _tpe(seed: int, budget: int) -> TPESampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        # Optuna draws its first ten trials at random; with a budget of five, none would be guided
        # by results. The constant liar keeps workers that draw at the same time apart; with one
        # worker it changes nothing.
        return TPESampler(
            seed=seed, n_startup_trials=min(10, max(1, budget // 2)), constant_liar=True
        )


def _fixed(parameters: Parameters) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return PartialFixedSampler(parameters, RandomSampler())


def study_name(sweep: Sweep, setting: Parameters, arm: str) -> str:
    """The study's name in the storage."""
    return "/".join(
        [
            "cudt",
            sweep.recipe_name,
            f"{sweep.name}-{sweep.identity()}",
            setting_name(setting) or "-",
            arm,
        ]
    )


def _distributions(
    sweep: Sweep, arm: str, listed: list[Parameters] | None
) -> dict[str, BaseDistribution]:
    if sweep.arm(arm).sampler == "seeds":
        # Not a list of seeds: Optuna refuses a changed list under the same name, and a budget may
        # grow.
        return {"seed": _SEEDS}
    if listed is not None:
        keys = listed[0].keys()
        return {
            key: CategoricalDistribution(_each_once([cell[key] for cell in listed])) for key in keys
        }
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
