"""Our runs in the layout of the paper's result tables, its numbers beside ours; what has no run stays empty.

A cell is a model, its depth L, γ_train and a data set, with both objectives as compare.py puts them side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.config import recipe as recipes
from cudt.config.differences import flat_settings
from cudt.config.recipe import NamedRecipe
from cudt.report.collect import ReadRun
from cudt.report.compare import SIDES, Comparison, Difference, Standing, compare
from cudt.utils.errors import UserError

#: The noise that the paper's tables are of.
NOISE = "gaussian"
#: What a published recipe is searched over, or is compared at.
_FREE = (
    *("descent.", "noise.gamma_train", "model.layers"),
    # What is logged and saved says nothing about the result.
    *("training.log_every", "training.checkpoint_every"),
)


def folder() -> Path:
    """Where the paper's numbers are: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    return next((path for path in (package / "paper", package.parent / "data" / "paper") if path.is_dir()), package)


@dataclass(frozen=True)
class Kind:
    """One of the paper's result tables: what it is of, and what it reads off a curve."""

    stem: str
    title: str
    metric: str
    quantity: str
    """As paired.csv calls it: `mean` over the levels, or `auc`."""
    published: str
    levels: tuple[float, ...]
    """The paper's; of text as we read it (its AUCs need a range that it does not print)."""


RESULTS = [
    Kind(
        "average-rmse",
        "Average RMSE over the levels of Gaussian noise",
        "RMSE",
        "mean",
        "rmse.csv",
        (0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0, 1.5),
    ),
    Kind(
        "accuracy-auc",
        "Area under accuracy against γ of Gaussian noise",
        "accuracy",
        "auc",
        "accuracy_auc.csv",
        tuple(round(0.15 * step, 2) for step in range(15)),
    ),
]


@dataclass(frozen=True, order=True)
class Place:
    """A row of a table, and a pair of its columns."""

    model: str
    layers: int
    gamma_train: float
    dataset: str

    def __str__(self) -> str:
        return f"{self.model} on {self.dataset}, L = {self.layers}, γ_train = {self.gamma_train:g}"


@dataclass(frozen=True)
class Side:
    """One objective in a place: our number, and the paper's."""

    standing: Standing
    ours: float = np.nan
    std: float = np.nan
    """Over seeds."""
    levels: tuple[float, ...] = ()
    paper: float = np.nan
    is_on_its_levels: bool = False
    """Whether ours is over the paper's levels, so that the difference to it means something."""
    is_better: bool = False

    @property
    def is_filled(self) -> bool:
        return bool(self.standing.runs)

    @property
    def difference(self) -> float:
        return self.ours - self.paper if self.is_on_its_levels else np.nan


@dataclass(frozen=True)
class Cell:
    """Constrained beside unconstrained, and what is known about their difference."""

    place: Place
    sides: dict[str, Side]
    difference: Difference
    is_even: bool


@dataclass(frozen=True)
class ResultTable:
    """The cells of one table, in the paper's order; or those of recipes that are not the paper's."""

    kind: Kind
    is_published: bool
    cells: list[Cell] = field(default_factory=list)

    @property
    def stem(self) -> str:
        return self.kind.stem if self.is_published else f"{self.kind.stem}-other"

    @property
    def title(self) -> str:
        return self.kind.title + ("" if self.is_published else ", other recipes")

    @property
    def missing(self) -> list[str]:
        """Every cell without a run."""
        empty = [(cell, side) for cell in self.cells for side in SIDES if not cell.sides[side].is_filled]
        whys = [(f"{cell.place}: {side}", cell.sides[side].standing.problem) for cell, side in empty]
        return [f"{what}; {why}" if why else what for what, why in whys]

    @property
    def n_filled(self) -> int:
        return sum(side.is_filled for cell in self.cells for side in cell.sides.values())

    @property
    def infeasible(self) -> list[str]:
        sides = [(cell.place, cell.sides[side]) for cell in self.cells for side in SIDES]
        return [f"{place}: {told}" for place, side in sides for told in side.standing.infeasible]

    def long(self) -> pd.DataFrame:
        """A row for each side of each cell."""
        return pd.DataFrame([row for cell in self.cells for row in _rows(cell)])


def _rows(cell: Cell) -> list[dict[str, Any]]:
    between = cell.difference
    pair = {"constrained_minus_erm": between.difference, "low": between.low, "high": between.high, "unit": between.unit}
    return [
        {
            **vars(cell.place),
            "objective": name,
            "ours": side.ours,
            "std": side.std,
            "seeds": side.standing.seeds,
            "best_of": side.standing.best_of,
            "levels": " ".join(f"{level:g}" for level in side.levels),
            "paper": side.paper,
            "difference": side.difference,
            **pair,
            "is_better": side.is_better,
            "infeasible": "; ".join(side.standing.infeasible),
            "reason": between.reason or side.standing.problem,
        }
        for name, side in cell.sides.items()
    ]


# ---------------------------------------------------------------- from runs to cells


def result_tables(runs: Sequence[ReadRun]) -> list[ResultTable]:
    """The paper's tables, filled as far as runs go, and the same for other recipes."""
    made = []
    for kind in RESULTS:
        published = _published(kind)
        mine = [run for run in runs if run.metric == kind.metric and run.objective in SIDES]
        named = _by_place([run for run in mine if is_published(run)], _published_place)
        theirs = {place: named.get(_without_depth(place), []) for place in published}
        cells = [_cell(kind, place, theirs[place], numbers) for place, numbers in published.items()]
        made.append(ResultTable(kind, True, cells))
        shown = {run.run.path for found in theirs.values() for run in found}
        others = _others(mine, {run.run.path for run in mine} - shown)
        if others:
            made.append(ResultTable(kind, False, [_cell(kind, place, others[place], {}) for place in sorted(others)]))
    return made


def _others(runs: Sequence[ReadRun], paths: set[Path]) -> dict[Place, list[ReadRun]]:
    """Runs that have no place in the paper's table; beside unconstrained ones, the constrained ones that have."""
    by_place = _by_place(runs, _own_place)
    found = {}
    for place, mine in by_place.items():
        left = [run for run in mine if run.run.path in paths]
        if left and all(run.objective == "erm" for run in left):
            left += [run for run in mine if run.objective == "constrained"]
        if left:
            found[place] = left
    return found


def _published(kind: Kind) -> dict[Place, dict[str, float]]:
    """The paper's numbers by place and objective, in its order."""
    found: dict[Place, dict[str, float]] = {}
    for row in pd.read_csv(folder() / kind.published).to_dict("records"):
        place = Place(row["model"], int(row["layers"]), float(row["gamma_train"]), row["dataset"])
        found.setdefault(place, {})[row["objective"]] = float(row["value"])
    return found


def is_published(run: ReadRun) -> bool:
    """Whether a run is one of the paper's: of a recipe that says so, as that comes with cudt but for what is searched.

    Of unconstrained ones, with the model as the paper has it.
    """
    named = run.run.recipe.settings.published
    shipped = _shipped(run.recipe)
    if named is None or shipped is None:
        return False
    wanted = {**shipped, **(named.erm if run.objective == "erm" else {})}
    settings = flat_settings(run.run.recipe)
    return all(settings.get(key) == value for key, value in wanted.items() if not key.startswith(_FREE))


@cache
def _shipped(name: str) -> dict[str, Any] | None:
    """The settings of a recipe that comes with cudt."""
    try:
        found, values = recipes.read_named(recipes.locate(name))
        return flat_settings(NamedRecipe(found, recipes.validate(values, name)))
    except UserError:
        return None


def _published_place(run: ReadRun) -> Place:
    named = run.run.recipe.settings.published
    assert named is not None
    return _without_depth(Place(named.model, run.info.layers, run.info.gamma_train, named.dataset))


def _without_depth(place: Place) -> Place:
    """Pretrained models have one depth, and the paper prints another (DistilBERT has 6 layers, not 12)."""
    return place if place.model in ("DUST", "UT") else replace(place, layers=0)


def _own_place(run: ReadRun) -> Place:
    return Place(run.recipe, run.info.layers, run.info.gamma_train, run.run.recipe.settings.task.name)


def _by_place(runs: Iterable[ReadRun], place_of: Callable[[ReadRun], Place]) -> dict[Place, list[ReadRun]]:
    found: dict[Place, list[ReadRun]] = {}
    for run in runs:
        found.setdefault(place_of(run), []).append(run)
    return found


def _cell(kind: Kind, place: Place, runs: Sequence[ReadRun], published: dict[str, float]) -> Cell:
    compared = compare(runs, NOISE)
    between = compared.difference(kind.quantity)
    sides = {name: _side(kind, compared, name, published.get(name, np.nan)) for name in SIDES}
    marked = {name: replace(side, is_better=between.better == name) for name, side in sides.items()}
    return Cell(place, marked, between, compared.is_even)


def _side(kind: Kind, compared: Comparison, name: str, published: float) -> Side:
    standing, levels = compared.sides[name], tuple(compared.levels)
    values = compared.values(name, kind.quantity)
    return Side(
        standing,
        compared.mean(name, kind.quantity),
        float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
        levels if standing.runs else (),
        published,
        len(levels) == len(kind.levels) and np.allclose(levels, kind.levels),
    )
