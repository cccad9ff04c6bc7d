"""The paper's result tables: its printed numbers, and which of our runs count as its
experiments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.config import recipe as recipes
from cudt.config.differences import flat_settings
from cudt.config.recipe import NamedRecipe
from cudt.report.collect import MAIN_EDITIONS, ReadRun
from cudt.report.comparable import ComparableCell
from cudt.report.objectives import BASELINE
from cudt.utils.errors import UserError

#: The noise of the paper's tables.
NOISE = "gaussian"
#: Settings that may differ from the published recipe: the paper searches or compares them.
_FREE = (
    *("descent.", "noise.gamma_train"),
    # Logging and checkpoints do not change a result.
    *("training.log_every", "training.checkpoint_every"),
)
#: Models that the paper has in several depths (model.layers); it has pretrained ones as a whole.
_OF_ANY_DEPTH = ("DUST", "UT")


def folder() -> Path:
    """The folder of the paper's numbers: inside an installed package, or at the top of a
    checkout.
    """
    package = Path(__file__).resolve().parent.parent
    return next(
        (path for path in (package / "paper", package.parent / "data" / "paper") if path.is_dir()),
        package,
    )


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's result tables: its metric, and the quantity it reads off a curve."""

    stem: str
    title: str
    metric: str
    quantity: str
    """As in paired.csv: `mean` over the levels, or `auc`."""
    file: str
    levels: tuple[float, ...]
    """The paper's levels; for text our reading of it, since its AUCs need a range that it does not
    print."""


PAPER_TABLES = [
    PaperTable(
        "average-rmse",
        "Average RMSE over the levels of Gaussian noise",
        "RMSE",
        "mean",
        "rmse.csv",
        (0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0, 1.5),
    ),
    PaperTable(
        "accuracy-auc",
        "Area under accuracy against γ of Gaussian noise",
        "accuracy",
        "auc",
        "accuracy_auc.csv",
        tuple(round(0.15 * step, 2) for step in range(15)),
    ),
]


def printed_numbers(table: PaperTable) -> dict[ComparableCell, dict[str, float]]:
    """The paper's number for each objective of each cell, in the paper's order."""
    found: dict[ComparableCell, dict[str, float]] = {}
    for row in pd.read_csv(folder() / table.file).to_dict("records"):
        cell = ComparableCell(
            row["model"],
            table.metric,
            int(row["layers"]),
            float(row["gamma_train"]),
            row["dataset"],
        )
        found.setdefault(cell, {})[row["objective"]] = float(row["value"])
    return found


def is_published(run: ReadRun) -> bool:
    """Whether a run is one of the paper's experiments.

    Its recipe says so and has the settings that come with cudt, except those that are searched. ERM
    runs have the model settings that the paper's unconstrained model has. Where runs have different
    test data, those of most runs.
    """
    named = run.run.recipe.settings.published
    shipped = _shipped_settings(run.recipe)
    if named is None or shipped is None or run.edition not in MAIN_EDITIONS:
        return False
    wanted = {**shipped, **(named.erm if run.objective == BASELINE else {})}
    free = (*_FREE, "model.layers") if named.model in _OF_ANY_DEPTH else _FREE
    found = flat_settings(run.run.recipe)
    return all(found.get(key) == value for key, value in wanted.items() if not key.startswith(free))


@cache
def _shipped_settings(name: str) -> dict[str, Any] | None:
    """The settings of a recipe that comes with cudt; None for other recipes."""
    try:
        found, values = recipes.read_named(recipes.locate(name))
        return flat_settings(NamedRecipe(found, recipes.validate(values, name)))
    except UserError:
        return None


def published_cell(run: ReadRun) -> ComparableCell:
    """The cell of the paper's tables that a published run belongs to, for comparison with
    `any_depth` cells.
    """
    named = run.run.recipe.settings.published
    assert named is not None
    return any_depth(
        ComparableCell(named.model, run.metric, run.n_layers, run.gamma_train, named.dataset)
    )


def any_depth(cell: ComparableCell) -> ComparableCell:
    """The cell without the depth of a pretrained model, which the paper misprints (DistilBERT has 6
    layers, not 12).
    """
    return cell if cell.model in _OF_ANY_DEPTH else replace(cell, layers=0)
