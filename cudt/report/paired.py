"""Differences to ERM with 95 % intervals: the same test examples under the same noise (docs/background/statistics.md)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.evaluation import intervals
from cudt.evaluation.curves import area_under_curve
from cudt.evaluation.intervals import Array
from cudt.noise.base import distribution, scale_of
from cudt.report.collect import ReadRun
from cudt.utils.errors import UserError

COLUMNS = [
    *("recipe", "objective", "variant", "against", "against_variant"),
    *("gamma_train", "layers", "perturbation", "metric"),
    *("quantity", "gamma", "difference", "low", "high", "unit", "n", "better", "reason"),
]
#: A bootstrap over fewer examples is far too sure of itself.
_FEWEST = 20
#: How far rounding may take the metric of the kept scores from the one in ood.csv.
_ROUNDING = 1e-6


class _NoIntervalError(Exception):
    """Why a difference has no interval."""


# ---------------------------------------------------------------- what is compared


@dataclass(frozen=True)
class Pair:
    """The evaluated runs of a group and of the ERM group that it is compared with, under one kind of noise."""

    perturbation: str
    ours: list[ReadRun]
    erm: list[ReadRun]

    @property
    def gamma_train(self) -> float:
        return self.ours[0].info.gamma_train


def pairs(runs: Sequence[ReadRun]) -> list[Pair]:
    """Each group that is not ERM with each ERM group of the same recipe, task, γ_train and number of layers.

    For every kind of noise that both were evaluated under; seeds that were not are left out.
    """
    groups: dict[tuple[str, str, str], list[ReadRun]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    alike: dict[tuple[Any, ...], list[list[ReadRun]]] = {}
    for members in groups.values():
        alike.setdefault(_shared(members[0]), []).append(members)
    return [pair for key in sorted(alike) for pair in _pairs_of(alike[key])]


def _shared(run: ReadRun) -> tuple[Any, ...]:
    """What two groups must have in common; the test data of generated tasks follow from the task's settings."""
    task = run.run.recipe.settings.task.model_dump_json()
    return (run.recipe, run.metric, run.info.layers, run.info.gamma_train, task)


def _pairs_of(groups: Sequence[list[ReadRun]]) -> list[Pair]:
    """The pairs of groups that may be compared."""
    by_kind = [(members[0].objective, _by_kind(members)) for members in groups]
    erms = [kinds for objective, kinds in by_kind if objective == "erm"]
    ours = [kinds for objective, kinds in by_kind if objective != "erm"]
    return [
        Pair(kind, members, erm[kind])
        for kinds in ours
        for kind, members in sorted(kinds.items())
        for erm in erms
        if kind in erm
    ]


def _by_kind(members: Sequence[ReadRun]) -> dict[str, list[ReadRun]]:
    """The runs that were evaluated under each kind of noise."""
    found: dict[str, list[ReadRun]] = {}
    for run in members:
        for kind in run.ood["perturbation"].unique():
            found.setdefault(str(kind), []).append(run)
    return found


# ---------------------------------------------------------------- one run under one kind of noise


@dataclass(frozen=True)
class _Scores:
    """What single examples scored: (examples, levels, noise seeds), examples in the order of their ids."""

    ids: pd.Index[str]
    levels: list[float]
    values: Array
    weights: Array
    is_root: bool

    def metrics(self, means: Array) -> Array:
        """From mean scores (…, levels · noise seeds) to the metric at each level, noise seeds averaged."""
        split = means.reshape(*means.shape[:-1], *self.values.shape[1:])
        return (np.sqrt(split) if self.is_root else split).mean(-1)

    @cached_property
    def whole(self) -> Array:
        """The metric at each level."""
        values, weights = self._flat()
        return self.metrics((values * weights).sum(0) / weights.sum(0))

    @cached_property
    def resampled(self) -> Array:
        """The metric at each level on each resample of the examples, (resamples, levels)."""
        return self.metrics(intervals.resampled_means(*self._flat()))

    def of(self, ids: pd.Index[str]) -> _Scores:
        """Those of some examples alone; mostly all have the same, and a run is resampled once for all its pairs."""
        if ids.equals(self.ids):
            return self
        rows = self.ids.get_indexer(ids)
        return _Scores(ids, self.levels, self.values[rows], self.weights[rows], self.is_root)

    def columns(self, levels: Sequence[float]) -> list[int]:
        """Where these levels stand."""
        return [self.levels.index(level) for level in levels]

    def _flat(self) -> tuple[Array, Array]:
        """Values and weights, a column for each level and noise seed; all of an example moves together."""
        values, weights = (table.reshape(len(self.ids), -1) for table in (self.values, self.weights))
        return values, weights


class _Measured:
    """A run under one kind of noise."""

    def __init__(self, run: ReadRun, kind: str) -> None:
        self.run, self.kind = run, kind
        rows = run.ood[(run.ood["perturbation"] == kind) & (run.ood["metric"] == run.metric)]
        self.curve: dict[float, float] = rows.groupby("gamma")["value"].mean().to_dict()
        self.noise_seeds = sorted(int(seed) for seed in set(rows["seed"]))

    @cached_property
    def scores(self) -> _Scores:
        """The kept scores; refuses those that are not all there, or not those behind ood.csv."""
        found, there = self._filled(self.run.run.read_examples(self.kind))
        told = [self.curve[level] for level in found.levels]
        if not np.allclose(found.whole, told, rtol=_ROUNDING, atol=0, equal_nan=True):
            raise self._unkept("examples.parquet does not give the metric of ood.csv")
        return found.of(found.ids[np.flatnonzero(there.all((1, 2)))])

    def _filled(self, table: pd.DataFrame) -> tuple[_Scores, Array]:
        """The table as (examples, levels, noise seeds), and where it has rows; elsewhere nothing counts."""
        levels, seeds = np.array(sorted(self.curve)), np.array(self.noise_seeds)
        table = table[table["gamma"].isin(levels) & table["seed"].isin(seeds)]
        codes, ids = pd.factorize(table["id"], sort=True)
        cells = (codes, np.searchsorted(levels, table["gamma"]), np.searchsorted(seeds, table["seed"]))
        values, weights, there = np.zeros((3, len(ids), len(levels), len(seeds)))
        values[cells], weights[cells], there[cells] = table["score"], table["weight"], 1
        if there.sum() < len(table):
            raise _NoIntervalError(f"{self.run.run.path}: test examples share an id, so they cannot be paired")
        missing = levels[(there.sum(0) == 0).any(-1)]
        if len(missing):
            level = f"{scale_of(self.kind).symbol} = {missing[0]:g}"
            raise self._unkept(f"no scores of single examples at {level}, which an earlier version evaluated")
        return _Scores(pd.Index(ids), levels.tolist(), values, weights, _is_root(self.run)), there

    def _unkept(self, what: str) -> _NoIntervalError:
        path = self.run.run.path
        return _NoIntervalError(f"{path}: {what}; `cudt eval-ood {path}` at every level mends it")


def _is_root(run: ReadRun) -> bool:
    """Whether the metric is the root of a mean score."""
    return run.info.metric.of_mean == "root"


# ---------------------------------------------------------------- one pair


@dataclass(frozen=True)
class _Quantities:
    """What is read off a curve; each is a weighted sum of its values."""

    levels: list[float]
    names: list[str]
    gammas: list[float]
    weights: Array
    """(levels, quantities)."""

    @classmethod
    def over(cls, levels: Sequence[float], kind: str, gamma_train: float) -> _Quantities:
        """The metric at every level, the area under it, and its mean over all levels, ID ones and OOD ones."""
        single: Array = np.eye(len(levels))
        inside = np.array([distribution(kind, level, gamma_train) == "ID" for level in levels])
        rows = [("metric", level, row) for level, row in zip(levels, single, strict=True)]
        if len(levels) > 1:
            rows.append(("auc", np.nan, np.array([area_under_curve(levels, row.tolist()) for row in single])))
        for name, chosen in (("mean", inside | True), ("id_mean", inside), ("ood_mean", ~inside)):
            if chosen.any():
                rows.append((name, np.nan, chosen / chosen.sum()))
        names, gammas, columns = zip(*rows, strict=True)
        return cls([*levels], [*names], [*gammas], np.stack(columns, axis=1))

    def of(self, curves: Array) -> Array:
        """The quantities of curves, (…, levels); a value that is not a number is told by those that it enters."""
        if np.isfinite(curves).all():
            return curves @ self.weights
        return np.stack([curves[..., column != 0] @ column[column != 0] for column in self.weights.T], axis=-1)


@dataclass(frozen=True)
class _Estimate:
    """Differences, a number for each quantity, with the ends of their intervals."""

    difference: Array
    low: Array
    high: Array
    n: int


def _chosen(pair: Pair) -> tuple[str, list[ReadRun], list[ReadRun]]:
    """What is resampled or varies, and which runs tell: training seeds where both sides have several, else examples."""
    seeds = sorted({run.seed for run in pair.ours} & {run.seed for run in pair.erm})
    if min(len(pair.ours), len(pair.erm)) == 1:
        return "examples", pair.ours, pair.erm
    if len(seeds) < 2:
        return "seeds", pair.ours, pair.erm
    ours, erm = ({run.seed: run for run in runs} for runs in (pair.ours, pair.erm))
    return "seeds paired", [ours[seed] for seed in seeds], [erm[seed] for seed in seeds]


def _refuse_unlike(runs: Sequence[_Measured]) -> None:
    if len({one.run.info.test_data for one in runs}) > 1:
        raise _NoIntervalError("tested on different data")
    drawn = {tuple(one.noise_seeds) for one in runs}
    if len(drawn) > 1:
        raise _NoIntervalError("noise seeds differ: " + " and ".join(str([*seeds]) for seeds in sorted(drawn)))


def _estimate(unit: str, ours: Sequence[_Measured], erm: Sequence[_Measured], wanted: _Quantities) -> _Estimate:
    """The interval of the difference on the examples that all runs have."""
    _refuse_unlike([*ours, *erm])
    ids = ours[0].scores.ids
    for one in [*ours, *erm]:
        if not one.scores.ids.equals(ids):
            ids = ids.intersection(one.scores.ids).sort_values()
    if ids.empty:
        raise _NoIntervalError("no test example in common")
    if len(ids) < _FEWEST:
        raise _NoIntervalError(f"{len(ids)} test examples are too few for an interval; {_FEWEST} are wanted")
    return _interval(unit, [one.scores.of(ids) for one in ours], [one.scores.of(ids) for one in erm], wanted)


def _interval(unit: str, ours: Sequence[_Scores], erm: Sequence[_Scores], wanted: _Quantities) -> _Estimate:
    """mean(ours) − mean(erm), and its percentile interval over examples, or over seeds ± √(r_seeds² + r_examples²).

    r is how far an interval by Student's t reaches that takes the other source of chance for fixed. What another
    test set would change is the same for all seeds, so that seeds alone do not show it, nor examples seeds.
    """
    left, right = (wanted.of(np.stack([one.whole[one.columns(wanted.levels)] for one in side])) for side in (ours, erm))
    difference = left.mean(0) - right.mean(0)
    drawn = [np.mean([one.resampled[:, one.columns(wanted.levels)] for one in side], axis=0) for side in (ours, erm)]
    resampled = wanted.of(drawn[0] - drawn[1])
    n_examples = len(ours[0].ids)
    if unit == "examples":
        return _Estimate(difference, *intervals.percentiles(resampled), n_examples)
    over_seeds = [_of_mean(left - right)] if unit == "seeds paired" else [_of_mean(left), _of_mean(right)]
    over_examples = [(resampled.var(0, ddof=1), max(1, n_examples - 1))]
    reach = np.hypot(intervals.student(over_seeds), intervals.student(over_examples))
    n = len(ours) if unit == "seeds paired" else len(ours) + len(erm)
    return _Estimate(difference, difference - reach, difference + reach, n)


def _of_mean(values: Array) -> tuple[Array, int]:
    """The variance s²/n of the mean over n seeds, and its n − 1 degrees of freedom."""
    return values.var(0, ddof=1) / len(values), len(values) - 1


# ---------------------------------------------------------------- the table


def compare(runs: Sequence[ReadRun]) -> tuple[pd.DataFrame, list[str]]:
    """The table of all pairs, ours − ERM, and a line for each file of scores that is damaged."""
    rows: list[dict[str, Any]] = []
    damaged: dict[str, None] = {}
    for _, alike in itertools.groupby(pairs(runs), key=lambda pair: _shared(pair.ours[0])):
        # Kept as long as there are runs to compare them with.
        measured: dict[tuple[Path, str], _Measured] = {}
        for pair in alike:
            rows += _rows(pair, measured, damaged)
    return pd.DataFrame(rows, columns=COLUMNS), [*damaged]


def nothing() -> pd.DataFrame:
    """The table of no pair."""
    return pd.DataFrame(columns=COLUMNS)


def of_pair(pair: Pair) -> pd.DataFrame:
    """The rows of one pair, whichever runs are on its sides."""
    return pd.DataFrame(_rows(pair, {}, {}), columns=COLUMNS)


def _rows(pair: Pair, known: dict[tuple[Path, str], _Measured], damaged: dict[str, None]) -> list[dict[str, Any]]:
    """A row for each quantity over the levels that all runs of a pair have; without an interval it says why."""
    unit, *sides = _chosen(pair)
    kind = pair.perturbation
    ours, erm = ([_measured(run, kind, known) for run in side] for side in sides)
    levels = sorted(set.intersection(*(set(one.curve) for one in [*ours, *erm])))
    if not levels:
        return []
    quantities = _Quantities.over(levels, kind, pair.gamma_train)
    reason = ""
    try:
        estimate = _estimate(unit, ours, erm, quantities)
    except (_NoIntervalError, UserError) as error:
        reason = str(error)
        damaged.update({reason: None} if isinstance(error, UserError) else {})
        estimate = _without_interval(ours, erm, quantities)
        unit = ""
    return _described(pair, quantities, estimate, unit, reason)


def _measured(run: ReadRun, kind: str, known: dict[tuple[Path, str], _Measured]) -> _Measured:
    key = (run.run.path, kind)
    if key not in known:
        known[key] = _Measured(run, kind)
    return known[key]


def _without_interval(ours: Sequence[_Measured], erm: Sequence[_Measured], wanted: _Quantities) -> _Estimate:
    """The difference alone, from ood.csv."""
    curves = [[[one.curve[level] for level in wanted.levels] for one in side] for side in (ours, erm)]
    difference = wanted.of(np.mean(curves[0], axis=0) - np.mean(curves[1], axis=0))
    return _Estimate(difference, difference * np.nan, difference * np.nan, 0)


def _described(
    pair: Pair, quantities: _Quantities, estimate: _Estimate, unit: str, reason: str
) -> list[dict[str, Any]]:
    first, erm = pair.ours[0], pair.erm[0]
    shared = {
        **dict(zip(COLUMNS[:3], first.group, strict=True)),
        **dict(zip(COLUMNS[3:5], erm.group[1:], strict=True)),
        "gamma_train": pair.gamma_train,
        "layers": first.info.layers,
        "perturbation": pair.perturbation,
        "metric": first.metric,
        "unit": unit,
        "n": estimate.n,
    }
    sign = 1 if first.info.metric.higher_is_better else -1
    numbers = zip(estimate.difference, estimate.low, estimate.high, strict=True)
    rows = []
    for name, gamma, (difference, low, high) in zip(quantities.names, quantities.gammas, numbers, strict=True):
        side = sign * (int(low > 0) - int(high < 0))
        why = reason or ("" if np.isfinite([low, high]).all() else "the metric is not a number")
        row = {"quantity": name, "gamma": gamma, "difference": difference, "low": low, "high": high, "reason": why}
        rows.append({**shared, **row, "better": {1: first.objective, -1: "erm", 0: ""}[side]})
    return rows
