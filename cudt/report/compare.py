"""Compare constrained with unconstrained (ERM) runs: which runs represent each side, and the
difference between them.

If the runs of a side differ in more than their seed, or only some of them were evaluated, one was
selected. Then both sides are the best of all their runs on validation data, as in the paper;
otherwise each is the mean over its seeds. The best of many beats the best of few by luck alone, so
neither side is called better if the numbers of runs differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from cudt.evaluation.curves import area_under_curve
from cudt.noise import distribution
from cudt.report import paired
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.comparable import CONSTRAINED, SIDES, Pair, by_group
from cudt.report.objectives import BASELINE
from cudt.utils.ranges import ranges
from cudt.utils.shown import as_command


@dataclass(frozen=True)
class Chosen:
    """The evaluated runs that represent one objective."""

    runs: list[ReadRun]
    best_of: int = 0
    """The number of runs the best was selected from; 0 if all runs count."""
    problem: str = ""
    """Why there is no run here although some were trained."""

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})

    @property
    def how(self) -> str:
        """`best of 5`, or `3 seeds`."""
        return (
            f"best of {self.best_of}"
            if self.best_of
            else f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        )

    @property
    def infeasible(self) -> list[tuple[ReadRun, str]]:
        """Each run that breaks a constraint, with the layers where it does."""
        return [(run, layers) for run in self.runs if (layers := failing_layers(run))]

    @property
    def infeasible_text(self) -> str:
        """The same for people: `seed 0: violated at layer 2`."""
        return "; ".join(f"seed {run.seed}: {layers}" for run, layers in self.infeasible)


@dataclass(frozen=True)
class Difference:
    """Constrained minus ERM in one quantity; without an interval, with the reason."""

    difference: float = np.nan
    low: float = np.nan
    high: float = np.nan
    unit: str = ""
    n: int = 0
    better: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """Both sides under one kind of noise, at the levels all their runs were evaluated at."""

    noise: str
    sides: dict[str, Chosen]
    levels: list[float]
    rows: pd.DataFrame
    """The rows of paired.csv; empty if a side is missing."""

    def values(self, side: str, quantity: str) -> list[float]:
        """`mean`, `auc`, `id_mean` or `ood_mean` of each run; nan if the metric is nan at one of
        its levels.
        """
        return [_quantity(run, self.noise, self.levels, quantity) for run in self.sides[side].runs]

    def mean(self, side: str, quantity: str) -> float:
        values = self.values(side, quantity)
        return float(np.mean(values)) if values else np.nan

    @property
    def input_mean(self) -> float:
        """The mean over the levels of the noisy input's own metric; nan for tasks where it is no
        answer.
        """
        runs = [run for side in self.sides.values() for run in side.runs]
        curves = [found for run in runs if (found := run.input_curves.get(self.noise, {}))]
        return (
            float(np.mean([curves[0].get(level, np.nan) for level in self.levels]))
            if curves
            else np.nan
        )

    def difference(self, quantity: str) -> Difference:
        rows = self.rows[self.rows["quantity"] == quantity]
        if rows.empty:
            return Difference(
                reason=self._problem() or f"no level for the {quantity.replace('_', ' ')}"
            )
        row: Any = rows.iloc[0]
        made = Difference(
            *(row[name] for name in ("difference", "low", "high", "unit", "n", "better", "reason"))
        )
        if not np.isfinite([made.low, made.high]).all():
            return replace(made, unit="", better="")
        return made if self.is_even else replace(made, better="")

    @property
    def is_even(self) -> bool:
        """Whether both sides were selected from the same number of runs."""
        return len({side.best_of for side in self.sides.values()}) == 1

    def _problem(self) -> str:
        problems = [side.problem for side in self.sides.values() if side.problem]
        is_complete = all(side.runs for side in self.sides.values())
        return "; ".join(problems) or (
            "no level in common" if is_complete and not self.levels else ""
        )


def compare(runs: Sequence[ReadRun], noise: str) -> Comparison:
    """Compare the runs of one cell (comparable.py) under one kind of noise."""
    chosen = choose(runs, noise)
    sides = {name: chosen.get(name, Chosen([])) for name in SIDES}
    found = [set(curve(run, noise)) for side in sides.values() for run in side.runs]
    levels = sorted(set.intersection(*found)) if found else []
    is_complete = levels and all(side.runs for side in sides.values())
    # A seed that only one side has is no part of the difference but of the means shown next to it:
    # same levels for all.
    at_levels = {
        name: [replace(run, ood=run.ood[run.ood["gamma"].isin(levels)]) for run in side.runs]
        for name, side in sides.items()
    }
    pair = Pair(noise, at_levels[CONSTRAINED], at_levels[BASELINE])
    return Comparison(noise, sides, levels, paired.of_pair(pair) if is_complete else paired.empty())


def choose(runs: Sequence[ReadRun], noise: str) -> dict[str, Chosen]:
    """The runs that represent each objective of one cell, as every table and figure shows them.

    Constrained and ERM decide together, and by the same criterion, whether the best or all runs
    count.
    """
    by_objective: dict[str, list[ReadRun]] = {}
    for run in runs:
        by_objective.setdefault(run.objective, []).append(run)
    compared = [run for run in runs if run.objective in SIDES]
    is_selected = any(_is_selected(by_objective.get(name, []), noise) for name in SIDES)
    chosen = {}
    for name, mine in by_objective.items():
        is_best = is_selected or _is_selected(mine, noise)
        key = criterion(compared if name in SIDES else mine)
        chosen[name] = _best(mine, noise, key) if is_best else _every(mine, noise)
    return chosen


def _is_selected(runs: Sequence[ReadRun], noise: str) -> bool:
    return (
        len({run.group for run in runs}) > 1 or len({bool(curve(run, noise)) for run in runs}) > 1
    )


def _every(runs: Sequence[ReadRun], noise: str) -> Chosen:
    found = [run for run in runs if curve(run, noise)]
    return Chosen(
        found,
        problem=""
        if found or not runs
        else f"not evaluated: {as_command('eval-ood', runs[0].run.path)}",
    )


def _best(runs: Sequence[ReadRun], noise: str, key: Callable[[ReadRun], float]) -> Chosen:
    """The best of all runs; none if it was not evaluated, since the second best is not what was
    selected.
    """
    best = min(runs, key=key)
    if not curve(best, noise):
        return Chosen(
            [],
            len(runs),
            "the best by validation data is not evaluated: "
            f"{as_command('eval-ood', best.run.path)}",
        )
    return Chosen([best], len(runs))


def group_scores(runs: Sequence[ReadRun]) -> dict[GroupKey, float]:
    """What groups are ranked by: the mean over their seeds of what single runs are ranked by."""
    rank = criterion(runs)
    return {
        key: float(np.mean([rank(run) for run in mine])) for key, mine in by_group(runs).items()
    }


def criterion(runs: Sequence[ReadRun]) -> Callable[[ReadRun], float]:
    """What these runs are ranked by on validation data, the lower the better.

    The mean metric over γ where all have the same levels, else the metric at γ_train where sweeps
    scored all by it, else the loss f_L. A sweep that scored the runs thus has the same best run.
    """
    grids = [tuple(run.validation["gamma"]) for run in runs]
    if grids and grids[0] and len(set(grids)) == 1:
        return lambda run: _nan_last(_sign(run) * run.validation["value"].mean(skipna=False))
    if runs and all(run.measure == "metric" for run in runs):
        return lambda run: _nan_last(_sign(run) * run.validation_metric)
    return lambda run: _nan_last(run.validation_loss)


def _sign(run: ReadRun) -> int:
    return -1 if run.higher_is_better else 1


def _nan_last(value: float) -> float:
    """A value that is not a number ranks last."""
    return value if np.isfinite(value) else np.inf


def curve(run: ReadRun, noise: str) -> dict[float, float]:
    """The metric by level, averaged over noise seeds; empty if the run was not evaluated under this
    noise.
    """
    return run.curves.get(noise, {})


def _quantity(run: ReadRun, noise: str, levels: Sequence[float], quantity: str) -> float:
    found = curve(run, noise)
    if quantity == "auc":
        return area_under_curve(levels, [found[level] for level in levels])
    wanted = {"mean": ("ID", "OOD"), "id_mean": ("ID",), "ood_mean": ("OOD",)}[quantity]
    values = [
        found[level] for level in levels if distribution(noise, level, run.gamma_train) in wanted
    ]
    return float(np.mean(values)) if values else np.nan


def failing_layers(run: ReadRun) -> str:
    """The layers whose constraints a run breaks: `violated at layers 1–3, 5; relaxed at layer
    4`.
    """
    found = run.failing.items()
    return "; ".join(
        f"{verdict} at layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"
        for verdict, layers in found
    )
