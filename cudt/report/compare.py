"""Constrained against unconstrained, fairly: which runs stand for each side, what they scored, how sure we are.

Where a side was chosen from (its runs differ in more than their seed, or only some were evaluated), both sides are the
best of all their runs by validation data, as the paper's are; else each is the mean over its seeds. The best of many
is better than the best of few by luck alone, so that sides of unequal numbers have no better one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from cudt.evaluation.curves import area_under_curve
from cudt.noise.base import distribution
from cudt.report import paired
from cudt.report.collect import ReadRun
from cudt.report.objectives import BASELINE

SIDES = ("constrained", BASELINE)


@dataclass(frozen=True)
class Standing:
    """The evaluated runs that stand for one objective."""

    runs: list[ReadRun]
    best_of: int = 0
    """Runs that one was chosen from; 0 where none was chosen."""
    problem: str = ""
    """Why nothing stands there, though something was trained."""

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})

    @property
    def how(self) -> str:
        """`best of 5`, or `3 seeds`."""
        return f"best of {self.best_of}" if self.best_of else f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"

    @property
    def infeasible(self) -> tuple[str, ...]:
        """Each run that does not keep every constraint, with the layers that fail."""
        told = [(run.run.path.name, failing_layers(run)) for run in self.runs]
        return tuple(f"{name}: {layers}" for name, layers in told if layers)


@dataclass(frozen=True)
class Difference:
    """Constrained minus ERM of one quantity; the interval is empty where there is a reason for that."""

    difference: float = np.nan
    low: float = np.nan
    high: float = np.nan
    unit: str = ""
    n: int = 0
    better: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """Both sides under one kind of noise, at the levels that all their runs have."""

    noise: str
    sides: dict[str, Standing]
    levels: list[float]
    rows: pd.DataFrame
    """As paired.csv has them; empty where a side is missing."""

    def values(self, side: str, quantity: str) -> list[float]:
        """`mean`, `auc`, `id_mean` or `ood_mean` of each run; what is not a number at one level is none at all."""
        return [_quantity(run, self.noise, self.levels, quantity) for run in self.sides[side].runs]

    def mean(self, side: str, quantity: str) -> float:
        values = self.values(side, quantity)
        return float(np.mean(values)) if values else np.nan

    def difference(self, quantity: str) -> Difference:
        rows = self.rows[self.rows["quantity"] == quantity]
        if rows.empty:
            return Difference(reason=self._problem() or f"no level for the {quantity.replace('_', ' ')}")
        row: Any = rows.iloc[0]
        made = Difference(*(row[name] for name in ("difference", "low", "high", "unit", "n", "better", "reason")))
        if not np.isfinite([made.low, made.high]).all():
            return replace(made, unit="", better="")
        return made if self.is_even else replace(made, better="")

    @property
    def is_even(self) -> bool:
        """Whether both sides are the best of as many."""
        return len({standing.best_of for standing in self.sides.values()}) == 1

    def _problem(self) -> str:
        problems = [standing.problem for standing in self.sides.values() if standing.problem]
        is_whole = all(standing.runs for standing in self.sides.values())
        return "; ".join(problems) or ("no level in common" if is_whole and not self.levels else "")


def compare(runs: Sequence[ReadRun], noise: str) -> Comparison:
    """The runs of one place: a recipe or a cell of the paper's, one depth and γ_train."""
    by_side = {name: [run for run in runs if run.objective == name] for name in SIDES}
    is_chosen = any(_is_chosen_from(mine, noise) for mine in by_side.values())
    # One criterion for both sides.
    key = _criterion([run for mine in by_side.values() for run in mine])
    sides = {
        name: _best(mine, noise, key) if is_chosen and mine else _every(mine, noise) for name, mine in by_side.items()
    }
    found = [set(curve(run, noise)) for standing in sides.values() for run in standing.runs]
    levels = sorted(set.intersection(*found)) if found else []
    is_whole = levels and all(standing.runs for standing in sides.values())
    # A seed without its pair is not part of the difference, but of what it stands beside.
    at_levels = {
        name: [replace(run, ood=run.ood[run.ood["gamma"].isin(levels)]) for run in standing.runs]
        for name, standing in sides.items()
    }
    pair = paired.Pair(noise, *(at_levels[side] for side in SIDES))
    return Comparison(noise, sides, levels, paired.of_pair(pair) if is_whole else paired.nothing())


def _is_chosen_from(runs: Sequence[ReadRun], noise: str) -> bool:
    return len({run.group for run in runs}) > 1 or len({bool(curve(run, noise)) for run in runs}) > 1


def _every(runs: Sequence[ReadRun], noise: str) -> Standing:
    found = [run for run in runs if curve(run, noise)]
    return Standing(found, problem="" if found or not runs else f"not evaluated: cudt eval-ood {runs[0].run.path}")


def _best(runs: Sequence[ReadRun], noise: str, key: Callable[[ReadRun], float]) -> Standing:
    """The best of all runs; nothing where it was not evaluated, since the next best would be another choice."""
    best = min(runs, key=key)
    if not curve(best, noise):
        return Standing([], len(runs), f"the best by validation data is not evaluated: cudt eval-ood {best.run.path}")
    return Standing([best], len(runs))


def best_by_validation(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """The best first."""
    return sorted(runs, key=_criterion(runs))


def _criterion(runs: Sequence[ReadRun]) -> Callable[[ReadRun], float]:
    """The mean metric over levels of validation data where all runs have the same ones, else the validation loss."""
    grids = [tuple(run.validation["gamma"]) for run in runs]
    if grids and grids[0] and len(set(grids)) == 1:
        return lambda run: _last_if_none(_sign(run) * run.validation["value"].mean(skipna=False))
    return lambda run: _last_if_none(run.info.best.validation_loss)


def _sign(run: ReadRun) -> int:
    return -1 if run.info.metric.higher_is_better else 1


def _last_if_none(value: float) -> float:
    """What is not a number comes after all that are."""
    return value if np.isfinite(value) else np.inf


def curve(run: ReadRun, noise: str) -> dict[float, float]:
    """The metric by level, noise seeds averaged; empty where a run was not evaluated under a kind of noise."""
    return run.curves.get(noise, {})


def _quantity(run: ReadRun, noise: str, levels: Sequence[float], quantity: str) -> float:
    found = curve(run, noise)
    if quantity == "auc":
        return area_under_curve(levels, [found[level] for level in levels])
    wanted = {"mean": ("ID", "OOD"), "id_mean": ("ID",), "ood_mean": ("OOD",)}[quantity]
    values = [found[level] for level in levels if distribution(noise, level, run.info.gamma_train) in wanted]
    return float(np.mean(values)) if values else np.nan


def failing_layers(run: ReadRun) -> str:
    """`violated at layers 1, 3; relaxed at layer 2`."""
    found = run.failing.items()
    return "; ".join(
        f"{verdict} at layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}" for verdict, layers in found
    )
