"""Differences between runs with 95 % intervals, on the same test examples under the same noise.

compare.py says which runs are compared; docs/background/statistics.md derives the intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd

from cudt.config.levels import distribution, scale_of
from cudt.evaluation import intervals
from cudt.evaluation.intervals import Array
from cudt.evaluation.tables import area_under_curve
from cudt.report.compare import BASELINE, CONSTRAINED, SIDES, Side, choose, pairs
from cudt.report.frames import Frames
from cudt.utils.errors import UserError
from cudt.utils.shown import as_command

COLUMNS = [
    *("recipe", "objective", "variant", "against", "against_variant"),
    *("gamma_train", "layers", "perturbation", "metric"),
    *("quantity", "gamma", "difference", "low", "high", "unit", "n", "better", "reason"),
]
#: A bootstrap over fewer examples gives intervals that are far too narrow; Student's interval over
#: clips does not.
_FEWEST = {"examples": 20, "clips": 2}
#: Largest relative difference that rounding may cause between the metric of the scores and ood.csv.
_ROUNDING = 1e-6
#: Runs whose scores are kept in memory.
_KEPT = 128


class NoIntervalError(Exception):
    """Why a difference has no interval."""


@dataclass(frozen=True)
class Quantities:
    """The numbers read off a curve; each is a weighted sum of its values."""

    levels: list[float]
    names: list[str]
    gammas: list[float]
    weights: Array
    """(levels, quantities)."""

    @classmethod
    def over(cls, levels: Sequence[float], noise: str, gamma_train: float) -> Quantities:
        """The metric at every level, the area under it, and its mean over all levels, ID and OOD."""
        single: Array = np.eye(len(levels))
        inside = np.array([distribution(noise, level, gamma_train) == "ID" for level in levels])
        rows = [("metric", level, row) for level, row in zip(levels, single, strict=True)]
        if len(levels) > 1:
            areas = np.array([area_under_curve(levels, row.tolist()) for row in single])
            rows.append(("auc", np.nan, areas))
        for name, chosen in (("mean", inside | True), ("id_mean", inside), ("ood_mean", ~inside)):
            if chosen.any():
                rows.append((name, np.nan, chosen / chosen.sum()))
        names, gammas, columns = zip(*rows, strict=True)
        return cls([*levels], [*names], [*gammas], np.stack(columns, axis=1))

    def of(self, curves: Array) -> Array:
        """The quantities of curves (…, levels); NaN affects only those it is part of."""
        if np.isfinite(curves).all():
            return curves @ self.weights
        columns = [curves[..., column != 0] @ column[column != 0] for column in self.weights.T]
        return np.stack(columns, axis=-1)

    def named(self, curve: Array | Sequence[float]) -> dict[str, float]:
        """The numbers over several levels by name; NaN for those without a level."""
        values = dict.fromkeys(("auc", "mean", "id_mean", "ood_mean"), np.nan)
        found = zip(self.names, self.of(np.asarray(curve, float)).tolist(), strict=True)
        return {**values, **{name: value for name, value in found if name in values}}


# ---------------------------------------------------------------- scores of one run


@dataclass(frozen=True)
class Scores:
    """Scores of single examples: (examples, levels, noise seeds), in the order of their ids."""

    ids: pd.Index[str]
    levels: list[float]
    values: Array
    weights: Array
    is_root: bool
    of_clips: bool = False
    """Whether the examples are windows of clips, which are resampled as a whole."""

    def metrics(self, means: Array) -> Array:
        """From mean scores (…, levels · noise seeds) to the metric, averaged over noise seeds."""
        split = means.reshape(*means.shape[:-1], *self.values.shape[1:])
        return (np.sqrt(split) if self.is_root else split).mean(-1)

    @cached_property
    def whole(self) -> Array:
        """The metric at each level."""
        values, weights = self._flat()
        return self.metrics((values * weights).sum(0) / weights.sum(0))

    @cached_property
    def resampled(self) -> Array:
        """The metric on each resample of the examples or their clips, (resamples, levels)."""
        return self.metrics(intervals.resampled_means(*self._flat(), self.clips))

    @cached_property
    def clips(self) -> Array | None:
        """The number of each example's clip, if they are windows of clips."""
        return intervals.clips_of(self.ids.tolist()) if self.of_clips else None

    @property
    def n_units(self) -> int:
        """The number of clips, or of examples."""
        return len(self.ids) if self.clips is None else len(np.unique(self.clips))

    def of(self, ids: pd.Index[str]) -> Scores:
        """The scores of some examples; the same object for all, so that a run is resampled once."""
        if ids.equals(self.ids):
            return self
        rows = self.ids.get_indexer(ids)
        return replace(self, ids=ids, values=self.values[rows], weights=self.weights[rows])

    def columns(self, levels: Sequence[float]) -> list[int]:
        """The indices of these levels."""
        return [self.levels.index(level) for level in levels]

    def _flat(self) -> tuple[Array, Array]:
        """Values and weights with a column for each level and noise seed."""
        return self.values.reshape(len(self.ids), -1), self.weights.reshape(len(self.ids), -1)


def read_scores(frames: Frames, run: int, noise: str) -> Scores:
    """The scores of a run; refused if some are missing or do not give the metric in ood.csv."""
    points = frames.points[(frames.points["run"] == run) & (frames.points["perturbation"] == noise)]
    facts, seeds = frames.runs.loc[run], np.array(points["drawn"].iloc[0])
    levels = points["gamma"].to_numpy()

    def outdated(problem: str) -> NoIntervalError:
        command = as_command("eval-ood", "--again", facts["path"])
        return NoIntervalError(f"{facts['path']}: {problem}; to fix it, run `{command}`")

    table = frames.scores(run, noise)
    table = table[table["gamma"].isin(levels) & table["seed"].isin(seeds)]
    codes, ids = pd.factorize(table["id"], sort=True)
    cells = codes, np.searchsorted(levels, table["gamma"]), np.searchsorted(seeds, table["seed"])
    values, weights, is_present = np.zeros((3, len(ids), len(levels), len(seeds)))
    values[cells], weights[cells], is_present[cells] = table["score"], table["weight"], 1
    if is_present.sum() < len(table):
        raise NoIntervalError(
            f"{facts['path']}: some test examples share an id and cannot be paired"
        )
    missing = levels[(is_present.sum(0) == 0).any(-1)]
    if len(missing):
        raise outdated(f"no scores of single examples at {scale_of(noise).symbol} = {missing[0]:g}")
    made = Scores(
        pd.Index(ids, dtype=object), [*levels], values, weights, facts["is_root"], facts["of_clips"]
    )
    if not np.allclose(made.whole, points["value"], rtol=_ROUNDING, atol=0, equal_nan=True):
        raise outdated("examples.parquet does not give the metric in ood.csv")
    return made.of(made.ids[np.flatnonzero(is_present.all((1, 2)))])


# ---------------------------------------------------------------- the difference of two sides


@dataclass(frozen=True)
class _Estimate:
    """The difference in each quantity, with the ends of its interval and what it is over."""

    difference: Array
    low: Array
    high: Array
    n: int = 0
    unit: str = ""
    reason: str = ""


def _interval(
    unit: str, ours: Sequence[Scores], baseline: Sequence[Scores], wanted: Quantities
) -> _Estimate:
    """mean(ours) − mean(baseline), with percentiles over examples, ± r_clips, or ± √(r_seeds² +
    r_examples²).

    r is the half-width of a Student's t interval that treats the other source of variation as
    fixed. Another test set would change all seeds alike, so the spread over seeds does not include
    it; nor does that over examples include other seeds. Where examples are windows of clips,
    r_clips takes the place of r_examples.
    """
    sides = ours, baseline
    left, right = (
        wanted.of(np.stack([one.whole[one.columns(wanted.levels)] for one in side]))
        for side in sides
    )
    difference = left.mean(0) - right.mean(0)
    drawn = [
        np.mean([one.resampled[:, one.columns(wanted.levels)] for one in side], axis=0)
        for side in sides
    ]
    resampled, first = wanted.of(drawn[0] - drawn[1]), ours[0]
    if unit == "examples":
        return _Estimate(difference, *intervals.percentiles(resampled), first.n_units, unit)
    if first.of_clips:
        over_examples = intervals.variance_over_clips(resampled, first.n_units)
    else:
        over_examples = resampled.var(0, ddof=1), max(1, first.n_units - 1)
    reach, n = intervals.student([over_examples]), first.n_units
    if unit != "clips":
        is_paired = unit == "seeds paired"
        over_seeds = [left - right] if is_paired else [left, right]
        # The variance s²/n of the mean over n seeds, and its n − 1 degrees of freedom.
        parts = [(one.var(0, ddof=1) / len(one), len(one) - 1) for one in over_seeds]
        reach, n = np.hypot(intervals.student(parts), reach), sum(map(len, over_seeds))
    return _Estimate(difference, difference - reach, difference + reach, n, unit)


class Differences:
    """Differences between runs of some frames; a run's scores are read and resampled once."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.damaged: dict[str, None] = {}
        self._scores = lru_cache(_KEPT)(partial(read_scores, frames))

    def table(self) -> pd.DataFrame:
        """paired.csv: every pair of groups that compare.py names."""
        rows = [row for one in pairs(self.frames.runs) for row in self.rows(*one)]
        return pd.DataFrame(rows, columns=COLUMNS)

    def rows(self, noise: str, ours: list[int], baseline: list[int]) -> list[dict[str, Any]]:
        """A row for each quantity over the levels that all runs have."""
        levels = self.levels(noise, [*ours, *baseline])
        unit, left, right = self._unit(ours, baseline)
        first, other = (self.frames.row(side[0]) for side in (ours, baseline))
        names = (first["group"], other["group"][1:], [first["gamma_train"], first["n_layers"]])
        values = [*(value for part in names for value in part), noise, first["metric"]]
        shared = dict(zip(COLUMNS, values, strict=False))
        if not levels:
            nothing = {"quantity": "metric", "unit": "", "n": 0, "better": ""}
            return [{**shared, **nothing, "reason": "no level in common"}]
        wanted = Quantities.over(levels, noise, first["gamma_train"])
        made = self._estimate(noise, unit, left, right, wanted)
        winners = ["", first["objective"], other["objective"]]
        sign, rows = 1 if first["higher_is_better"] else -1, []
        for name, gamma, difference, low, high in zip(
            wanted.names, wanted.gammas, made.difference, made.low, made.high, strict=True
        ):
            is_number = bool(np.isfinite([low, high]).all())
            rows.append({
                **shared,
                **{"quantity": name, "gamma": gamma, "difference": difference},
                **{"low": low, "high": high, "unit": made.unit, "n": made.n},
                "better": winners[sign * (int(low > 0) - int(high < 0))],
                "reason": made.reason or ("" if is_number else "the metric is not a number"),
            })  # fmt: skip
        return rows

    def levels(self, noise: str, runs: Sequence[int]) -> list[float]:
        """The levels that all of some runs were evaluated at."""
        found = [{*self.frames.curve(run, noise)} for run in runs]
        return sorted(set.intersection(*found)) if found else []

    def _unit(self, ours: list[int], baseline: list[int]) -> tuple[str, list[int], list[int]]:
        """What the interval is over: training seeds where both sides have several, paired where
        they share some; otherwise test examples, or the clips that they are windows of.
        """
        if min(len(ours), len(baseline)) == 1:
            return ("clips" if self.frames.row(ours[0]).of_clips else "examples"), ours, baseline
        left, right = (
            {self.frames.row(run).seed: run for run in side} for side in (ours, baseline)
        )
        seeds = sorted({*left} & {*right})
        if len(seeds) < 2:
            return "seeds", ours, baseline
        return "seeds paired", [left[seed] for seed in seeds], [right[seed] for seed in seeds]

    def _estimate(
        self, noise: str, unit: str, ours: list[int], baseline: list[int], wanted: Quantities
    ) -> _Estimate:
        """The difference with its interval, on the examples that all runs have; without one, the
        difference of the curves, with the reason.
        """
        try:
            every = self._comparable_scores(noise, [*ours, *baseline])
            return _interval(unit, every[: len(ours)], every[len(ours) :], wanted)
        except (NoIntervalError, UserError) as error:
            if isinstance(error, UserError):
                self.damaged[str(error)] = None
            means = [
                np.mean([[self.frames.curve(run, noise)[g] for g in wanted.levels] for run in side], 0)
                for side in (ours, baseline)
            ]
            difference = wanted.of(means[0]) - wanted.of(means[1])
            nothing = np.full(len(difference), np.nan)
            return _Estimate(difference, nothing, nothing, reason=str(error))

    def _comparable_scores(self, noise: str, runs: list[int]) -> list[Scores]:
        """The scores of runs on the examples that all have; refused where there is no interval."""
        if self.frames.runs.loc[runs, "test_data"].nunique() > 1:
            raise NoIntervalError("tested on different data")
        points = self.frames.points
        mine = points[points["run"].isin(runs) & (points["perturbation"] == noise)]
        if len(drawn := sorted({*mine["drawn"]})) > 1:
            seeds = " and ".join(str([*one]) for one in drawn)
            raise NoIntervalError(f"noise seeds differ: {seeds}")
        every = [self._scores(run, noise) for run in runs]
        ids = every[0].ids
        for one in every:
            ids = ids if one.ids.equals(ids) else ids.intersection(one.ids).sort_values()
        every = [one.of(ids) for one in every]
        sampled = "clips" if every[0].of_clips else "examples"
        found, fewest = every[0].n_units, _FEWEST[sampled]
        if found < fewest:
            few = f"test {sampled} in common are too few for an interval"
            raise NoIntervalError(f"{found} {few}; it needs at least {fewest}")
        return every

    def comparison(self, members: Sequence[int], noise: str) -> Comparison:
        """Constrained against ERM among comparable runs, at the levels all chosen runs have."""
        chosen = choose(self.frames.runs.loc[[*members]], noise)
        both = {name: chosen.get(name, Side([])) for name in SIDES}
        ours, baseline = (side.runs for side in both.values())
        levels = self.levels(noise, [*ours, *baseline])
        rows = self.rows(noise, ours, baseline) if levels and ours and baseline else []
        by_quantity = {row["quantity"]: row for row in rows}
        return Comparison(self.frames, noise, [*members], both, levels, by_quantity)


@dataclass(frozen=True)
class Comparison:
    """Both sides under one kind of noise, at the levels all their runs were evaluated at."""

    frames: Frames
    noise: str
    members: list[int]
    """All runs that were compared or selected from."""
    sides: dict[str, Side]
    levels: list[float]
    rows: dict[str, dict[str, Any]]
    """The rows of paired.csv over levels, by quantity."""

    @property
    def runs(self) -> Any:
        """The runs of both sides."""
        return self.frames.runs.loc[[run for side in self.sides.values() for run in side.runs]]

    def values(self, side: str, quantity: str) -> list[float]:
        """`mean`, `auc`, `id_mean` or `ood_mean` of each run; NaN if it is NaN at one level."""
        runs = self.sides[side].runs
        if not self.levels:
            return [np.nan] * len(runs)
        trained = self.frames.row(runs[0]).gamma_train if runs else 0.0
        wanted = Quantities.over(self.levels, self.noise, trained)
        curves = [self.frames.curve(run, self.noise) for run in runs]
        return [wanted.named([curve[g] for g in self.levels])[quantity] for curve in curves]

    def mean(self, side: str, quantity: str) -> float:
        """The mean over the runs of a side; NaN without one."""
        values = self.values(side, quantity)
        return float(np.mean(values)) if values else np.nan

    @property
    def is_even(self) -> bool:
        """Whether both sides were selected from the same number of runs: the best of many beats
        the best of few by luck alone.
        """
        return len({side.best_of for side in self.sides.values()}) == 1

    def difference(self, quantity: str) -> dict[str, Any]:
        """Constrained minus ERM in one quantity: difference, low, high, unit, n, better, reason;
        without a unit where there is no interval.
        """
        if row := self.rows.get(quantity):
            has_interval = bool(np.isfinite([row["low"], row["high"]]).all())
            unit, better = (row["unit"], row["better"]) if has_interval else ("", "")
            return {**row, "unit": unit, "better": better if self.is_even else ""}
        problems = "; ".join(side.problem for side in self.sides.values() if side.problem)
        is_complete = all(side.runs for side in self.sides.values()) and not self.levels
        missing = "in common" if is_complete else f"for the {quantity.replace('_', ' ')}"
        numbers = dict.fromkeys(("difference", "low", "high"), np.nan)
        reason = problems or f"no level {missing}"
        return {**numbers, "unit": "", "n": 0, "better": "", "reason": reason}


# ---------------------------------------------------------------- the answer

_ALONE = "of single runs, which says nothing about other seeds"
#: What an interval is over, in words, by its unit in paired.csv.
_OVER = {
    **{"seeds": "training seeds", "seeds paired": "training seeds"},
    **{"examples": f"test examples {_ALONE}", "clips": f"test clips {_ALONE}"},
}


def verdict(comparisons: Sequence[Comparison]) -> str:
    """What the comparisons say out of distribution: with its interval for one, counted for more."""
    found = [one.difference("ood_mean") for one in comparisons]
    if not found:
        return ""
    if len(found) == 1:
        (one,), (compared,) = found, comparisons
        if not one["unit"]:
            return f"Constrained against ERM has no interval: {one['reason']}."
        metric = compared.runs["metric"].iloc[0].replace("_", " ")
        ours, erm = (compared.mean(side, "ood_mean") for side in SIDES)
        named = {"constrained": "the constrained model is better", "erm": "ERM is better"}
        uneven = "the sides were selected from unequal numbers of runs"
        unclear = "no clear difference" if compared.is_even else uneven
        return (
            f"Under {compared.noise} noise above that of training, the mean {metric} is {ours:.4g} "
            f"with constraints and {erm:.4g} without, a difference of {one['difference']:+.3g} (95 % "
            f"interval {one['low']:+.3g} to {one['high']:+.3g} over {_OVER[one['unit']]}): "
            f"{named.get(one['better'], unclear)}."
        )
    counts = {
        "favour the constrained model": sum(one["better"] == CONSTRAINED for one in found),
        "favour ERM": sum(one["better"] == BASELINE for one in found),
        "show no clear difference": sum(bool(one["unit"]) and not one["better"] for one in found),
        "have no interval": sum(not one["unit"] for one in found),
    }
    parts = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    return (
        f"Under noise above that of training, of {len(found)} comparisons with ERM {parts} (95 % "
        "intervals; those of single runs say nothing about other training seeds)."
    )
