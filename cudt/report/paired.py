"""Differences between runs with 95 % intervals, on the same test examples under the same noise.

compare.py says which runs are compared; docs/evaluation.md explains the intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from cudt.config.levels import distribution
from cudt.evaluation import intervals
from cudt.evaluation.intervals import Array
from cudt.evaluation.tables import area_under_curve
from cudt.report.compare import BASELINE, CONSTRAINED, SIDES, Side, choose, pairs
from cudt.report.frames import GROUP, Frames
from cudt.utils.errors import UserError
from cudt.utils.text import as_command

COLUMNS = [
    *("recipe", "objective", "variant", "against", "against_variant"),
    *("gamma_train", "layers", "perturbation", "metric"),
    *("quantity", "gamma", "difference", "low", "high", "unit", "n", "better", "reason"),
]
_OVER_LEVELS = ("auc", "mean", "id_mean", "ood_mean")
_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("difference", "low", "high"), np.nan),
    **{"unit": "", "n": 0, "better": ""},
}
#: A bootstrap over fewer examples gives intervals that are far too narrow; Student's interval over
#: clips does not.
_FEWEST = {"examples": 20, "clips": 2}


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


def over_levels(curve: Mapping[float, float], noise: str, gamma_train: float) -> dict[str, float]:
    """The quantities over several levels of a curve by name; NaN for those without a level."""
    values = dict.fromkeys(_OVER_LEVELS, np.nan)
    if curve:
        wanted = Quantities.over([*curve], noise, gamma_train)
        found = wanted.of(np.array([*curve.values()], float)).tolist()
        named = zip(wanted.names, found, strict=True)
        values |= {name: value for name, value in named if name in values}
    return values


# ---------------------------------------------------------------- scores of one run


@dataclass(frozen=True)
class Scores:
    """Scores of single examples: (examples, levels · noise seeds), in the order of their ids."""

    ids: pd.Index[str]
    levels: list[float]
    values: Array
    weights: Array
    is_root: bool
    of_clips: bool = False
    """Whether the examples are windows of clips, which are resampled as a whole."""

    def metrics(self, means: Array) -> Array:
        """From mean scores (…, levels · noise seeds) to the metric, averaged over noise seeds."""
        split = means.reshape(*means.shape[:-1], len(self.levels), -1)
        return (np.sqrt(split) if self.is_root else split).mean(-1)

    @cached_property
    def whole(self) -> Array:
        """The metric at each level."""
        with np.errstate(invalid="ignore"):  # Without an example, it is not a number.
            return self.metrics((self.values * self.weights).sum(0) / self.weights.sum(0))

    @cached_property
    def resampled(self) -> Array:
        """The metric on each resample of the examples or their clips, (resamples, levels)."""
        return self.metrics(intervals.resampled_means(self.values, self.weights, self.clips))

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


def read_scores(frames: Frames, run: int, noise: str) -> Scores:
    """The scores of a run; refused if some are missing or do not give the metric in ood.csv."""
    points = frames.points[(frames.points["run"] == run) & (frames.points["perturbation"] == noise)]
    facts, seeds, levels = frames.row(run), points["drawn"].iloc[0], [*points["gamma"]]
    every = pd.MultiIndex.from_product([levels, seeds])
    table = frames.scores(run, noise)
    if table.duplicated(["id", "gamma", "seed"]).any():
        raise NoIntervalError(f"{facts['path']}: some test examples share an id")
    values, weights = (
        table.pivot(index="id", columns=["gamma", "seed"], values=name).reindex(columns=every)
        for name in ("score", "weight")
    )
    present = weights.notna()
    made = Scores(
        ids=pd.Index(values.index, dtype=object),
        levels=levels,
        values=values.where(present, 0.0).to_numpy(float),
        weights=weights.where(present, 0.0).to_numpy(float),
        is_root=facts["is_root"],
        of_clips=facts["of_clips"],
    )
    if not np.allclose(made.whole, points["value"], rtol=1e-6, atol=0, equal_nan=True):
        command = as_command("eval-ood", "--again", facts["path"])
        problem = f"{facts['path']}: examples.parquet does not give the metric in ood.csv"
        raise NoIntervalError(f"{problem}; to fix it, run `{command}`")
    return made.of(made.ids[present.all(axis=1)])


# ---------------------------------------------------------------- the difference of two sides


def _interval(
    unit: str, ours: Sequence[Scores], baseline: Sequence[Scores], wanted: Quantities
) -> tuple[Array, Array, Array, int]:
    """mean(ours) − mean(baseline) with the ends of its interval, and the number of units: with
    percentiles over examples, ± r_clips, or ± √(r_seeds² + r_examples²).

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
    resampled, n = wanted.of(drawn[0] - drawn[1]), ours[0].n_units
    if unit == "examples":
        return difference, *intervals.percentiles(resampled), n
    if ours[0].of_clips:
        over_examples = intervals.variance_over_clips(resampled, n)
    else:
        over_examples = resampled.var(0, ddof=1), max(1, n - 1)
    reach = intervals.student([over_examples])
    if unit != "clips":
        over_seeds = [left - right] if unit == "seeds paired" else [left, right]
        # The variance s²/n of the mean over n seeds, and its n − 1 degrees of freedom.
        parts = [(one.var(0, ddof=1) / len(one), len(one) - 1) for one in over_seeds]
        reach, n = np.hypot(intervals.student(parts), reach), sum(map(len, over_seeds))
    return difference, difference - reach, difference + reach, n


class Differences:
    """Differences between runs of some frames; a run's scores are read and resampled once."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self._scores = cache(partial(read_scores, frames))

    def table(self) -> pd.DataFrame:
        """paired.csv: every pair of groups that compare.py names."""
        rows = [row for one in pairs(self.frames.runs) for row in self.rows(*one)]
        return pd.DataFrame(rows, columns=COLUMNS)

    def rows(self, noise: str, ours: list[int], baseline: list[int]) -> list[dict[str, Any]]:
        """A row for each quantity over the levels that all runs have; without an interval, with
        the reason.
        """
        levels = self.levels(noise, [*ours, *baseline])
        first, other = (self.frames.row(side[0]) for side in (ours, baseline))
        shared = {
            **{name: first[name] for name in (*GROUP, "gamma_train", "metric")},
            **{"against": other["objective"], "against_variant": other["variant"]},
            **{"layers": first["n_layers"], "perturbation": noise},
        }
        if not levels:
            return [{**shared, **_NOTHING, "quantity": "metric", "reason": "no level in common"}]
        unit, ours, baseline = self._unit(ours, baseline)
        wanted, reason = Quantities.over(levels, noise, first["gamma_train"]), ""
        try:
            every = self._comparable_scores(noise, [*ours, *baseline])
            *numbers, n = _interval(unit, every[: len(ours)], every[len(ours) :], wanted)
        except (NoIntervalError, UserError) as error:
            left, right = (
                np.mean([[self.frames.curve(run, noise)[g] for g in levels] for run in side], 0)
                for side in (ours, baseline)
            )
            nothing = np.full(len(wanted.names), np.nan)
            numbers = [wanted.of(left) - wanted.of(right), nothing, nothing]
            reason, unit, n = str(error), "", 0
        columns = (wanted.names, wanted.gammas, *numbers)
        names = ("quantity", "gamma", "difference", "low", "high")
        table = pd.DataFrame(dict(zip(names, columns, strict=True))).assign(**shared, n=n)
        is_number = np.isfinite(table[["low", "high"]]).all(axis=1)
        higher = (table["low"] > 0).astype(int) - (table["high"] < 0)
        winners = {1: first["objective"], 0: "", -1: other["objective"]}
        table["better"] = (higher if first["higher_is_better"] else -higher).map(winners)
        table["unit"] = np.where(is_number, unit, "")
        table["reason"] = np.where(is_number, "", reason or "the metric is not a number")
        return table.to_dict("records")

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

    def _comparable_scores(self, noise: str, runs: list[int]) -> list[Scores]:
        """The scores of runs on the examples that all have; refused where there is no interval."""
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
        unit = "clips" if every[0].of_clips else "examples"
        if every[0].n_units < _FEWEST[unit]:
            few = f"{every[0].n_units} test {unit} in common are too few for an interval"
            raise NoIntervalError(f"{few}; it needs at least {_FEWEST[unit]}")
        return every

    def comparison(self, members: Sequence[int], noise: str) -> Comparison:
        """Constrained against ERM among comparable runs, at the levels all chosen runs have."""
        chosen = choose(self.frames.runs.loc[[*members]], noise)
        sides = {name: chosen.get(name, Side([])) for name in SIDES}
        ours, baseline = (side.runs for side in sides.values())
        levels = self.levels(noise, [*ours, *baseline])
        rows = self.rows(noise, ours, baseline) if levels and ours and baseline else []
        found = {row["quantity"]: row for row in rows}
        problems = "; ".join(side.problem for side in sides.values() if side.problem)
        nothing = {**_NOTHING, "reason": problems or "no level in common"}
        # The best of many beats the best of few by luck alone.
        is_even = len({side.best_of for side in sides.values()}) == 1
        of_run = {}
        for run in (*ours, *baseline):
            curve = self.frames.curve(run, noise)
            gamma_train = self.frames.row(run).gamma_train
            of_run[run] = over_levels({g: curve[g] for g in levels}, noise, gamma_train)
        numbers = {}
        for quantity in _OVER_LEVELS:
            row = {**found.get(quantity, nothing), "is_even": is_even}
            row["better"] = row["better"] if is_even else ""
            for name, side in sides.items():
                values = pd.Series([of_run[run][quantity] for run in side.runs], dtype=float)
                row[name] = values.mean(skipna=False)
                row[f"{name}_std"] = values.std(skipna=False)
            numbers[quantity] = row
        return Comparison([*members], noise, sides, levels, numbers)


@dataclass(frozen=True)
class Comparison:
    """Both sides under one kind of noise, at the levels all their runs were evaluated at."""

    members: list[int]
    """All runs that were compared or selected from."""
    noise: str
    sides: dict[str, Side]
    levels: list[float]
    numbers: dict[str, dict[str, Any]]
    """By quantity, the row of paired.csv, with the mean of each side and its spread over seeds; no
    `unit` where there is no interval, and nothing is `better` unless `is_even`."""


# ---------------------------------------------------------------- the answer


def verdict(comparisons: Sequence[Comparison]) -> str:
    """What the comparisons say out of distribution: with its interval for one, counted for more."""
    found = [one.numbers["ood_mean"] for one in comparisons]
    if not found:
        return ""
    where = "Under noise above that of training,"
    if len(found) == 1:
        text = _about_one(where, found[0])
    else:
        counts = {
            "favour the constrained model": sum(one["better"] == CONSTRAINED for one in found),
            "favour ERM": sum(one["better"] == BASELINE for one in found),
            "show no clear difference": sum(
                bool(one["unit"]) > bool(one["better"]) for one in found
            ),
            "have no interval": sum(not one["unit"] for one in found),
        }
        parts = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
        text = f"{where} of {len(found)} comparisons with ERM {parts} (95 % intervals)."
    if any(one["unit"] in ("examples", "clips") for one in found):
        text += " Intervals of single runs say nothing about other training seeds."
    return text


def _about_one(where: str, one: dict[str, Any]) -> str:
    if not one["unit"]:
        return f"Constrained against ERM has no interval: {one['reason']}."
    unclear = "no clear difference"
    if not one["is_even"]:
        unclear = "the sides were selected from unequal numbers of runs"
    named = {CONSTRAINED: "the constrained model is better", BASELINE: "ERM is better"}
    over = one["unit"].replace("seeds paired", "training seeds")
    return (
        f"{where} the mean {one['metric'].replace('_', ' ')} is {one[CONSTRAINED]:.4g} with "
        f"constraints and {one[BASELINE]:.4g} without, a difference of {one['difference']:+.3g} "
        f"(95 % interval {one['low']:+.3g} to {one['high']:+.3g} over {one['n']} {over}): "
        f"{named.get(one['better'], unclear)}."
    )
