"""Our runs in the paper's result tables: both objectives of each cell next to the paper's
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from cudt.config.differences import names_apart
from cudt.report.collect import ReadRun
from cudt.report.comparable import CONSTRAINED, SIDES, ComparableCell, by_cell
from cudt.report.compare import Chosen, Comparison, Difference, compare
from cudt.report.objectives import BASELINE
from cudt.report.published import (
    NOISE,
    PAPER_TABLES,
    PaperTable,
    any_depth,
    is_published,
    printed_numbers,
    published_cell,
)


@dataclass(frozen=True)
class Side:
    """One objective in a cell: our number, and the paper's."""

    chosen: Chosen
    ours: float = np.nan
    std: float = np.nan
    """Over seeds."""
    levels: tuple[float, ...] = ()
    paper: float = np.nan
    is_on_its_levels: bool = False
    """Whether ours is over the paper's levels; only then is the difference to the paper
    meaningful."""
    is_better: bool = False

    @property
    def is_filled(self) -> bool:
        return bool(self.chosen.runs)

    @property
    def difference(self) -> float:
        return self.ours - self.paper if self.is_on_its_levels else np.nan


@dataclass(frozen=True)
class Result:
    """Both objectives of one cell, and the difference between them."""

    cell: ComparableCell
    sides: dict[str, Side]
    difference: Difference
    is_even: bool
    input: float = np.nan
    """The same quantity of the noisy input itself, for denoising."""


@dataclass(frozen=True)
class ResultTable:
    """The results of one table: in the paper's cells and order, or those of other recipes."""

    kind: PaperTable
    is_published: bool
    results: list[Result] = field(default_factory=list)

    @property
    def stem(self) -> str:
        return self.kind.stem if self.is_published else f"{self.kind.stem}-other"

    @property
    def title(self) -> str:
        return self.kind.title + ("" if self.is_published else ", other recipes")

    @property
    def missing(self) -> list[str]:
        """Every side of a cell without a run, and why where that is known."""
        empty = [
            (result, side)
            for result in self.results
            for side in SIDES
            if not result.sides[side].is_filled
        ]
        reasons = [
            (f"{result.cell}: {side}", result.sides[side].chosen.problem) for result, side in empty
        ]
        return [f"{side}; {reason}" if reason else side for side, reason in reasons]

    @property
    def n_filled(self) -> int:
        return sum(side.is_filled for result in self.results for side in result.sides.values())

    @property
    def infeasible(self) -> list[str]:
        """Every cell with a run that breaks a constraint, and the layers where it does."""
        texts = [
            (result.cell, side.chosen.infeasible_text)
            for result in self.results
            for side in result.sides.values()
        ]
        return [f"{cell}: {text}" for cell, text in texts if text]

    def long(self) -> pd.DataFrame:
        """A row for each side of each cell."""
        return pd.DataFrame([row for result in self.results for row in _rows(result)])


def _rows(result: Result) -> list[dict[str, Any]]:
    cell, between = result.cell, result.difference
    pair = {
        "constrained_minus_erm": between.difference,
        "low": between.low,
        "high": between.high,
        "unit": between.unit,
    }
    return [
        {
            "model": cell.model,
            "layers": cell.layers,
            "gamma_train": cell.gamma_train,
            "dataset": cell.dataset,
            "objective": name,
            "ours": side.ours,
            "std": side.std,
            "seeds": side.chosen.seeds,
            "best_of": side.chosen.best_of,
            "levels": " ".join(f"{level:g}" for level in side.levels),
            "paper": side.paper,
            "difference": side.difference,
            "input": result.input,
            **pair,
            "is_better": side.is_better,
            # The run's folder, so that programs find the run.
            "infeasible": "; ".join(
                f"{run.run.path.name}: {layers}" for run, layers in side.chosen.infeasible
            ),
            "reason": between.reason or side.chosen.problem,
        }
        for name, side in result.sides.items()
    ]


# ---------------------------------------------------------------- from runs to results


def result_tables(runs: Sequence[ReadRun]) -> list[ResultTable]:
    """The paper's tables, filled as far as there are runs; and the same for other recipes, where
    there are any.
    """
    tables = []
    for kind in PAPER_TABLES:
        mine = [run for run in runs if run.metric == kind.metric and run.objective in SIDES]
        published = by_cell([run for run in mine if is_published(run)], published_cell)
        printed = printed_numbers(kind)
        members = {cell: published.get(any_depth(cell), []) for cell in printed}
        results = [_result(kind, cell, members[cell], numbers) for cell, numbers in printed.items()]
        tables.append(ResultTable(kind, True, results))
        if others := _others(mine, [run for found in members.values() for run in found]):
            tables.append(
                ResultTable(
                    kind, False, [_result(kind, cell, found, {}) for cell, found in others.items()]
                )
            )
    return tables


def _others(
    runs: Sequence[ReadRun], shown: Sequence[ReadRun]
) -> dict[ComparableCell, list[ReadRun]]:
    """The runs that are in none of the paper's cells, by cell.

    ERM runs alone are shown with the constrained runs of their cell, even if the paper's table has
    those already.
    """
    known = {run.run.path for run in shown}
    found = {}
    for cell, mine in by_cell(runs).items():
        left = [run for run in mine if run.run.path not in known]
        if left and all(run.objective == BASELINE for run in left):
            left += [run for run in mine if run.objective == CONSTRAINED]
        if left:
            found[cell] = left
    return _named_apart(found)


def _named_apart(cells: dict[ComparableCell, list[ReadRun]]) -> dict[ComparableCell, list[ReadRun]]:
    """Add to the data set's name the settings of task and origin of cells that differ in nothing
    else.
    """
    alike: dict[str, list[ComparableCell]] = {}
    for cell in cells:
        alike.setdefault(str(replace(cell, weights="best", loss="")), []).append(cell)
    named = {}
    for mine in alike.values():
        for cell, apart in zip(
            mine, names_apart([_settings_apart(cells[cell][0]) for cell in mine]), strict=True
        ):
            named[replace(cell, dataset=f"{cell.dataset} {apart}".strip())] = cells[cell]
    return named


def _settings_apart(run: ReadRun) -> dict[str, Any]:
    origin = ("model.pretrained", "training.select", "test data")
    return {
        key: value
        for key, value in run.settings.items()
        if key.startswith("task.") or key in origin
    }


def _result(
    kind: PaperTable, cell: ComparableCell, runs: Sequence[ReadRun], printed: dict[str, float]
) -> Result:
    compared = compare(runs, NOISE)
    between = compared.difference(kind.quantity)
    sides = {name: _side(kind, compared, name, printed.get(name, np.nan)) for name in SIDES}
    marked = {name: replace(side, is_better=between.better == name) for name, side in sides.items()}
    return Result(cell, marked, between, compared.is_even, compared.input_mean)


def _side(kind: PaperTable, compared: Comparison, name: str, printed: float) -> Side:
    chosen, levels = compared.sides[name], tuple(compared.levels)
    values = compared.values(name, kind.quantity)
    return Side(
        chosen,
        compared.mean(name, kind.quantity),
        float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
        levels if chosen.runs else (),
        printed,
        len(levels) == len(kind.levels) and np.allclose(levels, kind.levels),
    )
