"""The trials of a sweep in Optuna: one study for each arm in each setting.

A cell is a run to train. Each is enqueued as a trial with the cell's number as user attribute
`cell`, and workers on any machine take waiting trials. A worker that is interrupted enqueues its
trial again, and Optuna enqueues again those of workers whose heartbeat has stopped. So a cell may
have several trials; its first one with a result counts.

Other attributes of a trial: `settings`, what was drawn; `facts`, what the tables say, with the
`reason` of a failure; `seconds` of earlier attempts; `interrupted`; `surplus`, a trial that does
not count.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from cudt.sweep.definition import Sweep, setting_name
from cudt.sweep.search import MOST_LISTED, Range, Scalar, Settings, exact
from cudt.sweep.storage import MOST_DEATHS

State = Literal["waiting", "running", "lost", "finished", "pruned", "failed"]
ENDED: tuple[State, ...] = ("finished", "pruned", "failed")
_STATES: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
}
_RESULTS = (TrialState.COMPLETE, TrialState.PRUNED)

# Optuna would log every trial that fails, and warn of heartbeats.
optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=ExperimentalWarning)


class SurplusError(Exception):
    """A trial that does not count: its cell has a result, or runs elsewhere."""


@dataclass(frozen=True)
class Cell:
    """A run to train, as its trials say."""

    attempts: list[FrozenTrial]

    @property
    def trial(self) -> FrozenTrial:
        """The trial that counts: the first one with a result, else the newest."""
        return next((one for one in self.attempts if one.state in _RESULTS), self.attempts[-1])

    @property
    def settings(self) -> Settings | None:
        """Its searched settings; None if they are not drawn yet."""
        return self.trial.user_attrs.get("settings")

    @property
    def facts(self) -> dict[str, Any]:
        """What the tables say of it."""
        reason = f"{self.deaths} workers died while running it"
        known = {"reason": reason} if self.state == "failed" else {}
        return {"deaths": self.deaths, **known, **self.trial.user_attrs.get("facts", {})}

    @property
    def deaths(self) -> int:
        """How many workers have died while they ran it: nobody says why these trials failed."""
        failed = [one.user_attrs for one in self.attempts if one.state == TrialState.FAIL]
        said = ({*one, *one.get("facts", {})} for one in failed)
        return sum(not words & {"interrupted", "reason"} for words in said)

    @property
    def state(self) -> State:
        """Lost is what nobody runs, and nobody has enqueued again."""
        if self.trial.state == TrialState.FAIL:
            has_reason = "reason" in self.trial.user_attrs.get("facts", {})
            return "failed" if has_reason or self.deaths >= MOST_DEATHS else "lost"
        return _STATES[self.trial.state]


class ArmStudy:
    """The trials of one arm in one setting."""

    def __init__(self, sweep: Sweep, setting: Settings, name: str, storage: BaseStorage) -> None:
        self.sweep, self.setting, self.name = sweep, setting, name
        self.arm, self.budget = sweep.search.arms[name], sweep.budget(name)
        self.study = optuna.create_study(
            storage=storage,
            study_name=study_name(sweep, setting, name),
            direction=sweep.search.score.direction,
            pruner=self._pruner(),
            load_if_exists=True,
        )

    def _pruner(self) -> BasePruner | None:
        """Optuna's pruner; its steps are epochs, from 1."""
        if (pruner := self.arm.pruner) is None:
            return None
        first = pruner.warmup_epochs + 1
        if pruner.name == "median":
            # Workers count the finished runs themselves, for all pruners alike.
            return MedianPruner(n_startup_trials=0, n_warmup_steps=first)
        if pruner.name == "halving":
            return SuccessiveHalvingPruner(min_resource=first)
        settings = self.sweep.recipe(self.setting, self.name, self.arm.first).settings
        return HyperbandPruner(min_resource=first, max_resource=settings.training.epochs)

    def cells(self) -> dict[int, Cell]:
        """The cells within the budget that have a trial."""
        attempts: dict[int, list[FrozenTrial]] = defaultdict(list)
        for trial in self.study.get_trials(deepcopy=False):
            number = trial.user_attrs.get("cell", self.budget)
            if number < self.budget and "surplus" not in trial.user_attrs:
                attempts[number].append(trial)
        return {number: Cell(attempts[number]) for number in sorted(attempts)}

    @property
    def n_left(self) -> int:
        """Cells without a result."""
        return self.budget - sum(one.state in ENDED for one in self.cells().values())

    def describe(self, settings: Settings | None) -> str:
        """A cell in one line."""
        return self.sweep.describe(self.setting, self.name, settings or {})

    def listed(self) -> list[Settings | None]:
        """The settings of every cell; None for those that are drawn one by one."""
        arm = self.arm
        if arm.sampler == "seeds":
            first = self.sweep.recipe(self.setting, self.name, {}).settings.seed
            return [{"seed": first + number} for number in range(self.budget)]
        if arm.sampler == "grid":
            return [*arm.combinations()]
        if arm.sampler == "random" and arm.n_combinations <= MOST_LISTED:
            # Without repetitions, which would be the same run.
            return [*random.Random(self._seed("all")).sample(arm.combinations(), self.budget)]
        return [None] * self.budget

    # ------------------------------------------------------------ writing

    def enqueue(self, *, retry_failed: bool = False) -> None:
        """Enqueue the cells that have no trial, that are lost, and that failed if they are to be
        tried again.
        """
        known = self.cells()
        for number, settings in enumerate(self.listed()):
            if number not in known:
                own = {} if settings is None else {"settings": settings}
                self.study.enqueue_trial({}, user_attrs={"cell": number, **own})
            elif known[number].state in (["lost", "failed"] if retry_failed else ["lost"]):
                self.repeat(known[number].trial)

    def repeat(self, trial: FrozenTrial | optuna.Trial, **attributes: Any) -> None:
        """Enqueue the cell of a trial again, with what was drawn for it."""
        kept = {key: one for key, one in trial.user_attrs.items() if key in ("cell", "settings")}
        self.study.add_trial(
            optuna.create_trial(
                state=TrialState.WAITING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs={**kept, **attributes},
            )
        )

    def begin(self, trial: optuna.Trial) -> Settings:
        """The settings of a trial that this process has started, drawn if it has none; a
        SurplusError if it does not count.
        """
        cells, number = self.cells(), trial.user_attrs.get("cell", self.budget)
        attempts = cells[number].attempts if number in cells else []
        running = [one.number for one in attempts if one.state == TrialState.RUNNING]
        if not running or min(running) < trial.number or cells[number].state in ENDED:
            trial.set_user_attr("surplus", True)
            raise SurplusError
        settings: Settings | None = trial.user_attrs.get("settings")
        if settings is None:
            settings = self._drawn(trial, number)
            others = [repr(one.settings) for key, one in cells.items() if key != number]
            # Compared by repr, because True == 1 in Python.
            if self.arm.n_combinations <= MOST_LISTED and repr(settings) in others:
                free = [one for one in self.arm.combinations() if repr(one) not in others]
                chosen = random.Random(self._seed(number)).choice(free)
                self.study.enqueue_trial(chosen, user_attrs={"cell": number})
                trial.set_user_attr("surplus", True)
                raise SurplusError
            trial.set_user_attr("settings", settings)
        return settings

    def _drawn(self, trial: optuna.Trial, number: int) -> Settings:
        """What the sampler draws, seeded by the cell: a resumed sweep draws what it would have."""
        if self.arm.sampler == "random":
            sampler: BaseSampler = RandomSampler(seed=self._seed(number))
        else:
            # Optuna draws its first ten trials at random; with a budget of five, none would be
            # guided by results. The liar keeps workers that draw at the same time apart.
            first = min(10, max(1, self.budget // 2))
            seed = self._seed(number)
            sampler = TPESampler(seed=seed, n_startup_trials=first, constant_liar=True)
        self.study.sampler = sampler
        return {key: _suggested(trial, key, one) for key, one in self.arm.search.items()}

    def _seed(self, number: int | str) -> int:
        key = f"{self.sweep.search.seed} {self.study.study_name} {number}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big")


def _suggested(trial: optuna.Trial, key: str, searched: Range | list[Scalar]) -> Scalar:
    if isinstance(searched, list):
        return trial.suggest_categorical(key, searched)
    one = searched.distribution()
    if searched.type == "int":
        low, high, step = int(one.low), int(one.high), int(one.step or 1)
        return trial.suggest_int(key, low, high, step=step, log=one.log)
    value = trial.suggest_float(key, one.low, one.high, step=one.step, log=one.log)
    return value if one.step is None else exact(value)


def study_name(sweep: Sweep, setting: Settings, arm: str) -> str:
    """The study's name in the storage."""
    return "/".join(["cudt", sweep.recipe_name, sweep.title, setting_name(setting) or "-", arm])


def studies_of(sweep: Sweep, storage: BaseStorage) -> list[ArmStudy]:
    """The study of each arm in each setting; the first one has the sweep's definition."""
    pairs = [(setting, arm) for setting in sweep.settings for arm in sweep.search.arms]
    studies = [ArmStudy(sweep, *pair, storage) for pair in pairs]
    texts = sweep.texts()
    if studies[0].study.user_attrs.get("sweep") != texts:
        studies[0].study.set_user_attr("sweep", texts)
    return studies


def next_waiting(studies: Sequence[ArmStudy]) -> ArmStudy | None:
    """The study to take a trial from: setting by setting, in each the arm that has begun the
    fewest, so that a stopped sweep has spent equally.
    """
    order = [*dict.fromkeys(setting_name(one.setting) for one in studies)]
    ranked = []
    for index, study in enumerate(studies):
        states = [cell.state for cell in study.cells().values()]
        if (n_waiting := states.count("waiting")) > 0:
            begun = len(states) - n_waiting
            ranked.append((order.index(setting_name(study.setting)), begun, index))
    return studies[min(ranked)[2]] if ranked else None
