"""paired.csv: differences between objectives with 95 % intervals, on the same test examples under
the same noise.

comparable.py says which groups are paired, scores.py reads the scores;
docs/background/statistics.md derives the intervals.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.evaluation import intervals
from cudt.evaluation.curves import area_under_curve
from cudt.evaluation.intervals import Array
from cudt.noise import distribution
from cudt.report.collect import ReadRun
from cudt.report.comparable import Pair, cell_of, pairs
from cudt.report.scores import Measured, NoIntervalError, Scores
from cudt.utils.errors import UserError

COLUMNS = [
    *("recipe", "objective", "variant", "against", "against_variant"),
    *("gamma_train", "layers", "perturbation", "metric"),
    *("quantity", "gamma", "difference", "low", "high", "unit", "n", "better", "reason"),
]
#: A bootstrap over fewer examples gives intervals that are far too narrow; Student's interval over
#: clips does not.
_FEWEST = {"examples": 20, "clips": 2}


# ---------------------------------------------------------------- one pair


@dataclass(frozen=True)
class _Quantities:
    """The quantities read off a curve; each is a weighted sum of its values."""

    levels: list[float]
    names: list[str]
    gammas: list[float]
    weights: Array
    """(levels, quantities)."""

    @classmethod
    def over(cls, levels: Sequence[float], noise: str, gamma_train: float) -> _Quantities:
        """The metric at every level, the area under it, and its mean over all levels, ID ones and
        OOD ones.
        """
        single: Array = np.eye(len(levels))
        inside = np.array([distribution(noise, level, gamma_train) == "ID" for level in levels])
        rows = [("metric", level, row) for level, row in zip(levels, single, strict=True)]
        if len(levels) > 1:
            rows.append(
                (
                    "auc",
                    np.nan,
                    np.array([area_under_curve(levels, row.tolist()) for row in single]),
                )
            )
        for name, chosen in (("mean", inside | True), ("id_mean", inside), ("ood_mean", ~inside)):
            if chosen.any():
                rows.append((name, np.nan, chosen / chosen.sum()))
        names, gammas, columns = zip(*rows, strict=True)
        return cls([*levels], [*names], [*gammas], np.stack(columns, axis=1))

    def of(self, curves: Array) -> Array:
        """The quantities of curves (…, levels); a value that is not a number affects only those it
        is part of.
        """
        if np.isfinite(curves).all():
            return curves @ self.weights
        return np.stack(
            [curves[..., column != 0] @ column[column != 0] for column in self.weights.T], axis=-1
        )


@dataclass(frozen=True)
class _Estimate:
    """The difference in each quantity, with the ends of its interval."""

    difference: Array
    low: Array
    high: Array
    n: int


def chosen(pair: Pair) -> tuple[str, list[ReadRun], list[ReadRun]]:
    """The unit of the interval and the runs it is over: training seeds where both sides have
    several.

    Otherwise it is over test examples, or over the clips that they are windows of.
    """
    seeds = sorted({run.seed for run in pair.ours} & {run.seed for run in pair.baseline})
    if min(len(pair.ours), len(pair.baseline)) == 1:
        return (
            ("clips" if pair.ours[0].info.windows_of_clips else "examples"),
            pair.ours,
            pair.baseline,
        )
    if len(seeds) < 2:
        return "seeds", pair.ours, pair.baseline
    ours, baseline = ({run.seed: run for run in runs} for runs in (pair.ours, pair.baseline))
    return "seeds paired", [ours[seed] for seed in seeds], [baseline[seed] for seed in seeds]


def _refuse_unlike(runs: Sequence[Measured]) -> None:
    if len({one.run.info.test_data for one in runs}) > 1:
        raise NoIntervalError("tested on different data")
    drawn = {tuple(one.noise_seeds) for one in runs}
    if len(drawn) > 1:
        raise NoIntervalError(
            "noise seeds differ: " + " and ".join(str([*seeds]) for seeds in sorted(drawn))
        )


def _estimate(
    unit: str, ours: Sequence[Measured], baseline: Sequence[Measured], wanted: _Quantities
) -> _Estimate:
    """The difference with its interval, on the examples that all runs have."""
    _refuse_unlike([*ours, *baseline])
    ids = ours[0].scores.ids
    for one in [*ours, *baseline]:
        if not one.scores.ids.equals(ids):
            ids = ids.intersection(one.scores.ids).sort_values()
    if ids.empty:
        raise NoIntervalError("no test example in common")
    left, right = ([one.scores.of(ids) for one in side] for side in (ours, baseline))
    sampled, found = left[0].unit, left[0].n_units
    if found < _FEWEST[sampled]:
        few = "one test clip is" if sampled == "clips" else f"{found} test examples are"
        raise NoIntervalError(
            f"{few} too few for an interval; it needs at least {_FEWEST[sampled]}"
        )
    return _interval(unit, left, right, wanted)


def _interval(
    unit: str, ours: Sequence[Scores], baseline: Sequence[Scores], wanted: _Quantities
) -> _Estimate:
    """mean(ours) − mean(baseline), with percentiles over examples, ± r_clips, or ± √(r_seeds² +
    r_examples²).

    r is the half-width of a Student's t interval that treats the other source of variation as
    fixed. Another test set would change all seeds alike, so the spread over seeds does not include
    it; nor does that over examples include other seeds. Where examples are windows of clips,
    r_clips takes the place of r_examples.
    """
    left, right = (
        wanted.of(np.stack([one.whole[one.columns(wanted.levels)] for one in side]))
        for side in (ours, baseline)
    )
    difference = left.mean(0) - right.mean(0)
    drawn = [
        np.mean([one.resampled[:, one.columns(wanted.levels)] for one in side], axis=0)
        for side in (ours, baseline)
    ]
    resampled = wanted.of(drawn[0] - drawn[1])
    if unit == "examples":
        return _Estimate(difference, *intervals.percentiles(resampled), ours[0].n_units)
    reach = intervals.student([_of_resamples(resampled, ours[0])])
    if unit == "clips":
        return _Estimate(difference, difference - reach, difference + reach, ours[0].n_units)
    over_seeds = (
        [_of_mean(left - right)] if unit == "seeds paired" else [_of_mean(left), _of_mean(right)]
    )
    reach = np.hypot(intervals.student(over_seeds), reach)
    n = len(ours) if unit == "seeds paired" else len(ours) + len(baseline)
    return _Estimate(difference, difference - reach, difference + reach, n)


def _of_resamples(resampled: Array, scores: Scores) -> tuple[Array, int]:
    """The variance over resamples of the examples or clips, and its degrees of freedom."""
    if scores.of_clips:
        return intervals.variance_over_clips(resampled, scores.n_units)
    return resampled.var(0, ddof=1), max(1, scores.n_units - 1)


def _of_mean(values: Array) -> tuple[Array, int]:
    """The variance s²/n of the mean over n seeds, and its n − 1 degrees of freedom."""
    return values.var(0, ddof=1) / len(values), len(values) - 1


# ---------------------------------------------------------------- the table


def compare(runs: Sequence[ReadRun]) -> tuple[pd.DataFrame, list[str]]:
    """The table of all pairs, ours − baseline, and a warning for each damaged file of scores."""
    rows: list[dict[str, Any]] = []
    damaged: dict[str, None] = {}
    for _, of_cell in itertools.groupby(pairs(runs), key=lambda pair: cell_of(pair.ours[0])):
        # Scores take memory: they are kept only while runs of their cell are compared.
        measured: dict[tuple[Path, str], Measured] = {}
        for pair in of_cell:
            rows += _rows(pair, measured, damaged)
    return pd.DataFrame(rows, columns=COLUMNS), [*damaged]


def empty() -> pd.DataFrame:
    """The table without a pair."""
    return pd.DataFrame(columns=COLUMNS)


def of_pair(pair: Pair) -> pd.DataFrame:
    """The rows of one pair, whichever runs it holds."""
    return pd.DataFrame(_rows(pair, {}, {}), columns=COLUMNS)


def _rows(
    pair: Pair, known: dict[tuple[Path, str], Measured], damaged: dict[str, None]
) -> list[dict[str, Any]]:
    """A row for each quantity over the levels that all runs of a pair have; without an interval,
    with the reason.
    """
    unit, *sides = chosen(pair)
    ours, baseline = ([_measured(run, pair.noise, known) for run in side] for side in sides)
    levels = sorted(set.intersection(*(set(one.curve) for one in [*ours, *baseline])))
    if not levels:
        return []
    quantities = _Quantities.over(levels, pair.noise, pair.gamma_train)
    reason = ""
    try:
        estimate = _estimate(unit, ours, baseline, quantities)
    except (NoIntervalError, UserError) as error:
        reason = str(error)
        damaged.update({reason: None} if isinstance(error, UserError) else {})
        estimate = _without_interval(ours, baseline, quantities)
        unit = ""
    return _described(pair, quantities, estimate, unit, reason)


def _measured(run: ReadRun, noise: str, known: dict[tuple[Path, str], Measured]) -> Measured:
    key = (run.run.results, noise)
    if key not in known:
        known[key] = Measured(run, noise)
    return known[key]


def _without_interval(
    ours: Sequence[Measured], baseline: Sequence[Measured], wanted: _Quantities
) -> _Estimate:
    """The difference alone, from ood.csv."""
    curves = [
        [[one.curve[level] for level in wanted.levels] for one in side] for side in (ours, baseline)
    ]
    difference = wanted.of(np.mean(curves[0], axis=0) - np.mean(curves[1], axis=0))
    return _Estimate(difference, difference * np.nan, difference * np.nan, 0)


def _described(
    pair: Pair, quantities: _Quantities, estimate: _Estimate, unit: str, reason: str
) -> list[dict[str, Any]]:
    first, baseline = pair.ours[0], pair.baseline[0]
    shared = {
        **dict(zip(COLUMNS[:3], first.group, strict=True)),
        **dict(zip(COLUMNS[3:5], baseline.group[1:], strict=True)),
        "gamma_train": pair.gamma_train,
        "layers": first.n_layers,
        "perturbation": pair.noise,
        "metric": first.metric,
        "unit": unit,
        "n": estimate.n,
    }
    sign = 1 if first.higher_is_better else -1
    numbers = zip(estimate.difference, estimate.low, estimate.high, strict=True)
    rows = []
    for name, gamma, (difference, low, high) in zip(
        quantities.names, quantities.gammas, numbers, strict=True
    ):
        side = sign * (int(low > 0) - int(high < 0))
        why = reason or ("" if np.isfinite([low, high]).all() else "the metric is not a number")
        row = {
            "quantity": name,
            "gamma": gamma,
            "difference": difference,
            "low": low,
            "high": high,
            "reason": why,
        }
        rows.append(
            {**shared, **row, "better": {1: first.objective, -1: baseline.objective, 0: ""}[side]}
        )
    return rows
