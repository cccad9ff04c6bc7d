"""Gains over ERM by depth: for every model on one data set, the difference to ERM with its interval over seeds.

A gain is the difference in paired.csv, with its sign changed for metrics where less is better. Only groups count that
have at least three training seeds in common with their ERM runs. No group is selected by its test data: each kind of
constraint, and each variant, is a gain of its own. Of several groups of ERM, the one with the same settings of training
is taken, or else the best on validation data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cudt.config.differences import without_descent
from cudt.report import paired
from cudt.report.claims.base import FEWEST_SEEDS, sign_of, trained_noise
from cudt.report.collect import ReadRun
from cudt.report.comparable import Pair, model_settings, pairs
from cudt.report.compare import group_scores
from cudt.report.objectives import BASELINE


@dataclass(frozen=True, order=True)
class GainSetting:
    """What the models of one panel share."""

    task: str
    gamma_train: float
    metric: str
    noise: str


@dataclass(frozen=True)
class Gain:
    """The gain of one group over ERM in one quantity of paired.csv, with its interval over paired seeds."""

    run: ReadRun
    """The first of the group."""
    quantity: str
    value: float
    low: float
    high: float
    seeds: int
    levels: tuple[float, ...]
    """What the quantity is computed over."""


def compared(runs: Sequence[ReadRun]) -> dict[GainSetting, list[Pair]]:
    """The pairs with ERM that have enough seeds in common, under the noise of training."""
    found: dict[GainSetting, list[Pair]] = {}
    for pair in _with_one_baseline(runs):
        first = pair.ours[0]
        setting = GainSetting(first.run.recipe.settings.task.name, first.gamma_train, first.metric, pair.noise)
        found.setdefault(setting, []).append(pair)
    return dict(sorted(found.items()))


def _with_one_baseline(runs: Sequence[ReadRun]) -> list[Pair]:
    every = [pair for pair in pairs(runs) if pair.baseline[0].objective == BASELINE]
    enough = [pair for pair in every if pair.noise == trained_noise(pair.ours[0]) and _seeds(pair) >= FEWEST_SEEDS]
    scores = group_scores([run for run in runs if run.objective == BASELINE])
    best: dict[object, Pair] = {}
    for pair in sorted(enough, key=lambda one: (*_unlike(one), scores[one.baseline[0].group])):
        best.setdefault((pair.ours[0].group, pair.noise), pair)
    return [pair for pair in enough if best[pair.ours[0].group, pair.noise] is pair]


def _seeds(pair: Pair) -> int:
    return len({run.seed for run in pair.ours} & {run.seed for run in pair.baseline})


def _unlike(pair: Pair) -> tuple[bool, bool]:
    """Whether ERM differs in any setting but those of the constraints, and in the model."""
    ours, baseline = pair.ours[0], pair.baseline[0]
    is_other = without_descent(ours.settings) != without_descent(baseline.settings)
    return is_other, model_settings(ours) != model_settings(baseline)


def gains(pair: Pair, quantities: Sequence[str]) -> list[Gain]:
    """The gain in each quantity; without those that have no interval."""
    rows = paired.of_pair(pair)
    levels = tuple(sorted(rows[rows["quantity"] == "metric"]["gamma"]))
    sign, made = sign_of(pair.ours[0]), []
    for row in rows[rows["quantity"].isin(quantities) & (rows["reason"] == "")].to_dict("records"):
        low, high = sorted(sign * float(row[end]) for end in ("low", "high"))
        value = sign * float(row["difference"])
        made.append(Gain(pair.ours[0], row["quantity"], value, low, high, int(row["n"]), levels))
    return made
