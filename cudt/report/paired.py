"""Differences between runs with 95 % intervals, on the same test examples under the same noise.

compare.py says which runs are compared; docs/evaluation.md explains the intervals.
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
from cudt.report.compare import SIDES, Side, choose, pairs
from cudt.report.frames import Frames
from cudt.utils.errors import UserError
from cudt.utils.text import as_command

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
class Estimate:
    """The difference in each quantity, with the ends of its interval and what it is over."""

    difference: Array
    low: Array
    high: Array
    n: int
    unit: str = ""
    reason: str = ""


def _interval(
    unit: str, ours: Sequence[Scores], baseline: Sequence[Scores], wanted: Quantities
) -> Estimate:
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
    resampled, first = wanted.of(drawn[0] - drawn[1]), ours[0]
    if unit == "examples":
        return Estimate(difference, *intervals.percentiles(resampled), first.n_units, unit)
    if first.of_clips:
        over_examples = intervals.variance_over_clips(resampled, first.n_units)
    else:
        over_examples = resampled.var(0, ddof=1), max(1, first.n_units - 1)
    reach = intervals.student([over_examples])
    if unit == "clips":
        return Estimate(difference, difference - reach, difference + reach, first.n_units, unit)
    paired = unit == "seeds paired"
    over_seeds = [_of_mean(left - right)] if paired else [_of_mean(left), _of_mean(right)]
    reach = np.hypot(intervals.student(over_seeds), reach)
    n = len(ours) if paired else len(ours) + len(baseline)
    return Estimate(difference, difference - reach, difference + reach, n, unit)


def _of_mean(values: Array) -> tuple[Array, int]:
    """The variance s²/n of the mean over n seeds, and its n − 1 degrees of freedom."""
    return values.var(0, ddof=1) / len(values), len(values) - 1


@dataclass(frozen=True)
class Difference:
    """One side minus the other in one quantity; without an interval, with the reason."""

    difference: float = np.nan
    low: float = np.nan
    high: float = np.nan
    unit: str = ""
    n: int = 0
    better: str = ""
    reason: str = ""


class Differences:
    """Differences between runs of some frames; a run's scores are read and resampled once."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.damaged: dict[str, None] = {}
        self._scores = lru_cache(_KEPT)(partial(read_scores, frames))

    def table(self) -> pd.DataFrame:
        """paired.csv: every pair of groups that compare.py names."""
        rows = [
            row
            for _, noise, ours, baseline in pairs(self.frames.runs)
            for row in self.rows(noise, ours, baseline)
        ]
        return pd.DataFrame(rows, columns=COLUMNS)

    def rows(
        self,
        noise: str,
        ours: list[int],
        baseline: list[int],
        within: Sequence[float] | None = None,
    ) -> list[dict[str, Any]]:
        """A row for each quantity over the levels that all runs have (and `within` has)."""
        unit, left, right = self._unit(ours, baseline)
        curves = [self.frames.curve(run, noise) for run in (*left, *right)]
        levels = sorted(set.intersection(*({*curve} for curve in curves)))
        levels = [level for level in levels if within is None or level in within]
        first, other = (self.frames.runs.loc[side[0]] for side in (ours, baseline))
        shared = {
            **dict(zip(COLUMNS[:3], first["group"], strict=True)),
            **dict(zip(COLUMNS[3:5], other["group"][1:], strict=True)),
            **{"gamma_train": first["gamma_train"], "layers": first["n_layers"]},
            **{"perturbation": noise, "metric": first["metric"]},
        }
        if not levels:
            nothing = {"quantity": "metric", "unit": "", "n": 0, "better": ""}
            return [{**shared, **nothing, "reason": "no level in common"}]
        wanted = Quantities.over(levels, noise, first["gamma_train"])
        made = self._estimate(noise, unit, left, right, wanted)
        sign = 1 if first["higher_is_better"] else -1
        rows = []
        for name, gamma, difference, low, high in zip(
            wanted.names, wanted.gammas, made.difference, made.low, made.high, strict=True
        ):
            side = sign * (int(low > 0) - int(high < 0))
            is_number = bool(np.isfinite([low, high]).all())
            rows.append({
                **shared,
                **{"quantity": name, "gamma": gamma, "difference": difference},
                **{"low": low, "high": high, "unit": made.unit, "n": made.n},
                "better": {1: first["objective"], -1: other["objective"], 0: ""}[side],
                "reason": made.reason or ("" if is_number else "the metric is not a number"),
            })  # fmt: skip
        return rows

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
    ) -> Estimate:
        """The difference with its interval, on the examples that all runs have; without one, the
        difference of the curves, with the reason.
        """
        try:
            self._refuse_unlike(noise, [*ours, *baseline])
            every = [self._scores(run, noise) for run in (*ours, *baseline)]
            ids = every[0].ids
            for one in every:
                ids = ids if one.ids.equals(ids) else ids.intersection(one.ids).sort_values()
            if ids.empty:
                raise NoIntervalError("no test example in common")
            every = [one.of(ids) for one in every]
            sampled, found = "clips" if every[0].of_clips else "examples", every[0].n_units
            if found < _FEWEST[sampled]:
                few = "one test clip is" if sampled == "clips" else f"{found} test examples are"
                raise NoIntervalError(
                    f"{few} too few for an interval; it needs at least {_FEWEST[sampled]}"
                )
            return _interval(unit, every[: len(ours)], every[len(ours) :], wanted)
        except (NoIntervalError, UserError) as error:
            if isinstance(error, UserError):
                self.damaged[str(error)] = None
            means = [
                np.mean(
                    [[self.frames.curve(run, noise)[g] for g in wanted.levels] for run in side],
                    axis=0,
                )
                for side in (ours, baseline)
            ]
            difference = wanted.of(means[0]) - wanted.of(means[1])
            nothing = np.full(len(difference), np.nan)
            return Estimate(difference, nothing, nothing, 0, "", str(error))

    def _refuse_unlike(self, noise: str, runs: list[int]) -> None:
        if self.frames.runs.loc[runs, "test_data"].nunique() > 1:
            raise NoIntervalError("tested on different data")
        points = self.frames.points
        mine = points[points["run"].isin(runs) & (points["perturbation"] == noise)]
        if len(drawn := sorted({*mine["drawn"]})) > 1:
            raise NoIntervalError(
                "noise seeds differ: " + " and ".join(str([*seeds]) for seeds in drawn)
            )

    def comparison(self, runs: pd.DataFrame, noise: str) -> Comparison:
        """Constrained against ERM among comparable runs, at the levels all their runs have."""
        chosen = choose(runs, noise)
        sides = {name: chosen.get(name, Side([])) for name in SIDES}
        ours, baseline = (sides[name].runs for name in SIDES)
        found = [{*self.frames.curve(run, noise)} for run in (*ours, *baseline)]
        levels = sorted(set.intersection(*found)) if found else []
        is_complete = bool(levels and ours and baseline)
        rows = self.rows(noise, ours, baseline, levels) if is_complete else []
        return Comparison(self.frames, noise, sides, levels, {row["quantity"]: row for row in rows})


@dataclass(frozen=True)
class Comparison:
    """Both sides under one kind of noise, at the levels all their runs were evaluated at."""

    frames: Frames
    noise: str
    sides: dict[str, Side]
    levels: list[float]
    rows: dict[str, dict[str, Any]]
    """The rows of paired.csv over levels, by quantity."""

    @property
    def runs(self) -> Any:
        """The runs of both sides."""
        return self.frames.runs.loc[[run for side in self.sides.values() for run in side.runs]]

    @property
    def metric(self) -> str:
        """The metric of the runs."""
        return str(self.runs["metric"].iloc[0]) if len(self.runs) else ""

    def values(self, side: str, quantity: str) -> list[float]:
        """`mean`, `auc`, `id_mean` or `ood_mean` of each run; NaN if it is NaN at one level."""
        runs = self.sides[side].runs
        if not self.levels:
            return [np.nan] * len(runs)
        trained = self.frames.row(runs[0]).gamma_train if runs else 0.0
        wanted = Quantities.over(self.levels, self.noise, trained)
        curves = [self.frames.curve(run, self.noise) for run in runs]
        return [wanted.named(np.array([c[g] for g in self.levels]))[quantity] for c in curves]

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

    def difference(self, quantity: str) -> Difference:
        """Constrained minus ERM in one quantity."""
        if quantity not in self.rows:
            problems = [side.problem for side in self.sides.values() if side.problem]
            is_complete = all(side.runs for side in self.sides.values())
            no_level = "no level in common" if is_complete and not self.levels else ""
            reason = (
                "; ".join(problems) or no_level or f"no level for the {quantity.replace('_', ' ')}"
            )
            return Difference(reason=reason)
        row = self.rows[quantity]
        made = Difference(**{name: row[name] for name in Difference.__dataclass_fields__})
        if not np.isfinite([made.low, made.high]).all():
            return replace(made, unit="", better="")
        return made if self.is_even else replace(made, better="")


# ---------------------------------------------------------------- the answer

#: What an interval is over, in words, by its unit in paired.csv.
_OVER = {
    "seeds": "training seeds",
    "seeds paired": "training seeds",
    "examples": "test examples of single runs, which says nothing about other seeds",
    "clips": "test clips of single runs, which says nothing about other seeds",
}


def verdict(comparisons: Sequence[Comparison]) -> str:
    """What the comparisons say out of distribution: with its interval for one, counted for more."""
    found = [one.difference("ood_mean") for one in comparisons]
    if len(found) == 1:
        (one,), (compared,) = found, comparisons
        if not one.unit:
            return f"Constrained against ERM has no interval: {one.reason}." if one.reason else ""
        metric = compared.metric.replace("_", " ")
        ours, erm = (compared.mean(side, "ood_mean") for side in SIDES)
        named = {"constrained": "the constrained model is better", "erm": "ERM is better"}
        even = (
            "no clear difference"
            if compared.is_even
            else "the sides were selected from unequal numbers of runs"
        )
        return (
            f"Under {compared.noise} noise above that of training, the mean {metric} is {ours:.4g} with "
            f"constraints and {erm:.4g} without, a difference of {one.difference:+.3g} (95 % interval "
            f"{one.low:+.3g} to {one.high:+.3g} over {_OVER[one.unit]}): {named.get(one.better, even)}."
        )
    if not found:
        return ""
    counts = {
        "favour the constrained model": sum(one.better == SIDES[0] for one in found),
        "favour ERM": sum(one.better == SIDES[1] for one in found),
        "show no clear difference": sum(bool(one.unit) and not one.better for one in found),
        "have no interval": sum(not one.unit for one in found),
    }
    parts = [f"{count} {words}" for words, count in counts.items() if count]
    single = any(one.unit in ("examples", "clips") for one in found)
    note = " Intervals of single runs say nothing about other training seeds." if single else ""
    return f"Under noise above that of training, of {len(found)} comparisons with ERM {', '.join(parts)} (95 % intervals).{note}"
