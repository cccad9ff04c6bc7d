"""The contract of a claim of the paper, and the rule by which it is judged. claims/__init__.py collects all claims.

A file next to this one lists its claims in `CLAIMS`. A claim looks at the runs and returns an `Evidence` for each
setting that it can be tested in: an effect with an interval over training seeds, and the range of effects that the
claim asserts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from cudt.evaluation import intervals
from cudt.noise.base import distribution
from cudt.report.collect import ReadRun
from cudt.report.comparable import CONSTRAINED, Pair, matched_settings, pairs
from cudt.report.names import labels

#: Fewer seeds than these show nothing about other seeds.
FEWEST_SEEDS = 3

Outcome = Literal["for", "against", "unclear", "not tested"]
Verdict = Literal["supported", "not supported", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Interval:
    """An effect with its 95 % interval over seeds."""

    effect: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Evidence:
    """What the runs of one setting say about a claim."""

    setting: str
    quantity: str
    """What `ours`, `theirs` and the effect measure."""
    interval: Interval
    """Of the effect; where the claim compares with a baseline, the better constrained is, the larger."""
    baseline: str = ""
    """The objective that constrained is compared with; empty if the claim is about constrained runs alone."""
    ours: float = math.nan
    theirs: float = math.nan
    more_than: float = 0.0
    less_than: float = math.inf
    """The claim asserts an effect between these."""
    is_for_every_seed: bool = False
    """Whether the claim has to hold in every seed, so that one seed that breaks it is against it."""
    lacking: str = ""
    """Why this is no test, and what to do about it."""

    @property
    def outcome(self) -> Outcome:
        low, high = self.interval.low, self.interval.high
        if self.lacking or np.isnan([low, high]).any():
            return "not tested"
        if low > self.more_than and high < self.less_than:
            return "for"
        is_outside = high <= self.more_than or low >= self.less_than
        return "against" if is_outside or self.is_for_every_seed else "unclear"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    name: str
    """As the paper numbers it, or a word."""
    statement: str
    paper: Callable[[], str]
    """The paper's own figure for it."""
    find: Callable[[Runs], list[Evidence]]
    test: str
    """The command whose runs test it."""
    is_compared: bool = True
    """Whether constrained is compared with other objectives; else the claim is about constrained runs alone."""


class Runs:
    """The runs that claims are judged on."""

    def __init__(self, runs: Sequence[ReadRun], chosen: set[str], differences: pd.DataFrame) -> None:
        """`chosen` are the names of runs that a search chose among, `differences` the rows of paired.csv without them.

        The best of a search is no fair sample of seeds.
        """
        self.all = list(runs)
        self.fresh = [run for run in runs if run.name not in chosen]
        self.differences = differences
        self._known: dict[tuple[str, Path], float] = {}

    def number(self, run: ReadRun, quantity: str, measure: Callable[[ReadRun], float]) -> float:
        """A number of a run, measured once: many pairs share a run."""
        key = (quantity, run.run.path)
        if key not in self._known:
            self._known[key] = measure(run)
        return self._known[key]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Each constrained group with each baseline: that of the same `matched_settings`, if there is one."""
        found = [pair for pair in pairs(self.fresh) if pair.ours[0].objective == CONSTRAINED]
        alike = {_sides(pair) for pair in found if _is_matched(pair)}
        return [pair for pair in found if _is_matched(pair) or _sides(pair) not in alike]

    @cached_property
    def groups(self) -> list[list[ReadRun]]:
        """The constrained runs that differ in their seed only, evaluated under the noise of training."""
        found: dict[tuple[str, str, str], list[ReadRun]] = {}
        for run in self.fresh:
            if run.objective == CONSTRAINED and trained_noise(run) in run.curves:
                found.setdefault(run.group, []).append(run)
        return list(found.values())

    def setting(self, run: ReadRun, noise: str = "") -> str:
        """A group in words: recipe, what sets a variant apart, depth, γ_train and noise."""
        apart = self._labels[run.group].removeprefix(run.objective).strip()
        words = [run.recipe, apart, f"L = {run.n_layers}", f"γ_train = {run.gamma_train:g}", noise]
        return ", ".join(word for word in words if word)

    @cached_property
    def _labels(self) -> dict[tuple[str, str, str], str]:
        return labels(self.fresh)


def trained_noise(run: ReadRun) -> str:
    """The kind of noise that a run was trained with."""
    return run.run.recipe.settings.noise.kind


def _sides(pair: Pair) -> tuple[object, str, str]:
    return pair.ours[0].group, pair.baseline[0].objective, pair.noise


def _is_matched(pair: Pair) -> bool:
    return matched_settings(pair.ours[0]) == matched_settings(pair.baseline[0])


# ---------------------------------------------------------------- numbers of runs


def sign_of(run: ReadRun) -> int:
    """1 if a larger metric is better, else −1."""
    return 1 if run.higher_is_better else -1


def mean_metric(run: ReadRun, noise: str, where: str) -> float:
    """The mean metric over the levels that are in distribution (`ID`) or out of it (`OOD`)."""
    curve = run.curves.get(noise, {})
    values = [value for level, value in curve.items() if distribution(noise, level, run.gamma_train) == where]
    return float(np.mean(values)) if values else math.nan


def by_seed(runs: Sequence[ReadRun], measure: Callable[[ReadRun], float]) -> dict[int, float]:
    """A number of each run, by its seed."""
    return {run.seed: measure(run) for run in runs}


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean over seeds with Student's interval."""
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return Interval(float(array.mean()) if len(array) else math.nan, math.nan, math.nan, len(array))
    reach = float(intervals.student([(array.var(ddof=1) / len(array), len(array) - 1)]))
    return Interval(float(array.mean()), float(array.mean()) - reach, float(array.mean()) + reach, len(array))


def clipped(interval: Interval, lowest: float, highest: float) -> Interval:
    """Student's interval may leave the range of a share, or of a difference of shares; cut it off there."""
    low, high = (float(np.clip(end, lowest, highest)) for end in (interval.low, interval.high))
    return replace(interval, low=low, high=high)


def of_every_seed(values: Sequence[float]) -> Interval:
    """The mean with the smallest and the largest value, for what has to hold in every seed."""
    return Interval(float(np.mean(values)), float(min(values)), float(max(values)), len(values))


def too_few(seeds: int) -> str:
    """What is missing if there are too few seeds; empty if there are enough."""
    if seeds >= FEWEST_SEEDS:
        return ""
    found = f"{seeds} seed{'' if seeds == 1 else 's'} in common"
    return f"{found}, {FEWEST_SEEDS} needed: train with --seed 0 1 2 and evaluate again"


def paired_shares(runs: Runs, pair: Pair, quantity: str, measure: Callable[[ReadRun], float]) -> Evidence:
    """The difference of a share between the two sides of a pair, over the seeds that both have."""
    ours, theirs = (by_seed(side, measure) for side in (pair.ours, pair.baseline))
    seeds = sorted(set(ours) & set(theirs))
    found = clipped(over_seeds([ours[seed] - theirs[seed] for seed in seeds]), -1, 1)
    mean_ours, mean_theirs = (float(np.mean([*side.values()])) for side in (ours, theirs))
    return Evidence(
        runs.setting(pair.ours[0], pair.noise),
        quantity,
        found,
        pair.baseline[0].objective,
        mean_ours,
        mean_theirs,
        lacking=too_few(found.seeds),
    )


def verdict(evidence: Sequence[Evidence]) -> Verdict:
    """Supported if more than half of the settings with an outcome are for a claim, else not if one is against it.

    Settings that are unclear have too few seeds to tell: alone, they do not test a claim.
    """
    found = [one.outcome for one in evidence if one.outcome != "not tested"]
    if 2 * found.count("for") > len(found):
        return "supported"
    return "not supported" if "against" in found else "not tested"
