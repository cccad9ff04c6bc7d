"""Our runs in the layout of the paper's result tables, its numbers beside ours; what has no run stays empty.

A cell is a model, its depth L, γ_train and a data set, with both objectives. Where a side was searched (its runs differ
in more than their seed), both sides are the best of their runs by validation data, as the paper's are; else each is the
mean over its seeds. A side is the better one only where the interval of the difference says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.report import paired, tables
from cudt.report.collect import ReadRun

#: The noise that the paper's tables are of.
NOISE = "gaussian"
SIDES = ("constrained", "erm")


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


RESULTS = [
    Kind("average-rmse", "Average RMSE over the levels of Gaussian noise", "RMSE", "mean", "rmse.csv"),
    Kind("accuracy-auc", "Area under accuracy against γ of Gaussian noise", "accuracy", "auc", "accuracy_auc.csv"),
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

    ours: float = np.nan
    std: float = np.nan
    """Over seeds."""
    seeds: int = 0
    best_of: int = 0
    """Runs that one was chosen from; 0 where none was chosen."""
    infeasible: tuple[str, ...] = ()
    """Each run that does not keep every constraint, with the layers that fail."""
    levels: str = ""
    paper: float = np.nan
    is_better: bool = False

    @property
    def difference(self) -> float:
        return self.ours - self.paper


@dataclass(frozen=True)
class Cell:
    """Constrained beside unconstrained, and what is known about their difference."""

    place: Place
    sides: dict[str, Side]
    difference: float = np.nan
    low: float = np.nan
    high: float = np.nan
    unit: str = ""
    reason: str = ""
    """Why there is no interval, where there is none."""


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
        return [f"{cell.place}: {side}" for cell in self.cells for side in SIDES if not cell.sides[side].seeds]

    @property
    def n_filled(self) -> int:
        return sum(side.seeds > 0 for cell in self.cells for side in cell.sides.values())

    @property
    def infeasible(self) -> list[str]:
        sides = [(cell.place, cell.sides[side]) for cell in self.cells for side in SIDES]
        return [f"{place}: {told}" for place, side in sides for told in side.infeasible]

    def long(self) -> pd.DataFrame:
        """A row for each side of each cell."""
        return pd.DataFrame([row for cell in self.cells for row in _rows(cell)])


def _rows(cell: Cell) -> list[dict[str, Any]]:
    pair = {"constrained_minus_erm": cell.difference, "low": cell.low, "high": cell.high, "unit": cell.unit}
    return [
        {
            **vars(cell.place),
            "objective": name,
            "ours": side.ours,
            "std": side.std,
            "seeds": side.seeds,
            "best_of": side.best_of,
            "levels": side.levels,
            "paper": side.paper,
            "difference": side.difference,
            **pair,
            "is_better": side.is_better,
            "infeasible": "; ".join(side.infeasible),
            "reason": cell.reason,
        }
        for name, side in cell.sides.items()
    ]


# ---------------------------------------------------------------- from runs to cells


def result_tables(runs: Sequence[ReadRun]) -> list[ResultTable]:
    """The paper's tables, filled as far as runs go, and the same for other recipes."""
    made = []
    for kind in RESULTS:
        published = _published(kind)
        measured = [run for run in runs if run.metric == kind.metric and run.objective in SIDES]
        named = _by_place([run for run in measured if _is_published(run)], _published_place)
        theirs = {place: named.pop(_without_depth(place), []) for place in published}
        cells = [_cell(kind, place, theirs[place], numbers) for place, numbers in published.items()]
        made.append(ResultTable(kind, True, cells))
        # A paper's recipe at a depth or level that it does not print is one of the others.
        strange = [run for found in named.values() for run in found]
        others = _by_place([*strange, *(run for run in measured if not _is_published(run))], _own_place)
        if others:
            made.append(ResultTable(kind, False, [_cell(kind, place, others[place], {}) for place in sorted(others)]))
    return made


def _published(kind: Kind) -> dict[Place, dict[str, float]]:
    """The paper's numbers by place and objective, in its order."""
    found: dict[Place, dict[str, float]] = {}
    for row in pd.read_csv(folder() / kind.published).to_dict("records"):
        place = Place(row["model"], int(row["layers"]), float(row["gamma_train"]), row["dataset"])
        found.setdefault(place, {})[row["objective"]] = float(row["value"])
    return found


def _is_published(run: ReadRun) -> bool:
    """Whether a run's recipe is one of the paper's; of unconstrained ones, with the model as the paper has it."""
    named = run.run.recipe.settings.published
    if named is None:
        return False
    return run.objective != "erm" or all(run.setting(key) == value for key, value in named.erm.items())


def _published_place(run: ReadRun) -> Place:
    named = run.run.recipe.settings.published
    assert named is not None
    return _without_depth(Place(named.model, run.info["layers"], run.info["gamma_train"], named.dataset))


def _without_depth(place: Place) -> Place:
    """Pretrained models have one depth, and the paper prints another (DistilBERT has 6 layers, not 12)."""
    return place if place.model in ("DUST", "UT") else replace(place, layers=0)


def _own_place(run: ReadRun) -> Place:
    return Place(run.recipe, run.info.get("layers", 0), run.info["gamma_train"], run.run.recipe.settings.task.name)


def _by_place(runs: Iterable[ReadRun], place_of: Any) -> dict[Place, list[ReadRun]]:
    found: dict[Place, list[ReadRun]] = {}
    for run in runs:
        found.setdefault(place_of(run), []).append(run)
    return found


def _has_curve(run: ReadRun) -> bool:
    return not _curve(run).empty


def _curve(run: ReadRun) -> pd.Series[float]:
    """The metric by level, noise seeds averaged."""
    rows = run.ood[(run.ood["perturbation"] == NOISE) & (run.ood["metric"] == run.metric)]
    return rows.groupby("gamma")["value"].mean()


# ---------------------------------------------------------------- one cell


def _cell(kind: Kind, place: Place, runs: Sequence[ReadRun], published: dict[str, float]) -> Cell:
    by_side = {name: [run for run in runs if run.objective == name] for name in SIDES}
    is_chosen = any(_is_chosen_from(mine) for mine in by_side.values())
    chosen = {name: _best(mine) if is_chosen else mine for name, mine in by_side.items()}
    sides = {}
    for name, mine in chosen.items():
        side = _side(kind, mine, len(by_side[name]) if is_chosen else 0)
        sides[name] = replace(side, paper=published.get(name, np.nan))
    return _compared(kind, Cell(place, sides), chosen)


def _is_chosen_from(runs: Sequence[ReadRun]) -> bool:
    """Whether one of some runs stands for all: they differ in more than their seed, or only the best were evaluated."""
    return len({run.group for run in runs}) > 1 or len({_has_curve(run) for run in runs}) > 1


def _best(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """The best of all runs; none where it was not evaluated, since the next best would be another choice."""
    return [run for run in best_by_validation(runs)[:1] if _has_curve(run)]


def best_by_validation(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """The best first: by the mean metric over levels where all were judged at the same ones, else by the loss."""
    scores = [run.validation.set_index("gamma")["value"] for run in runs]
    if runs and len(scores[0]) and all(score.index.equals(scores[0].index) for score in scores):
        sign = -1 if runs[0].info["metric"]["higher_is_better"] else 1
        return sorted(runs, key=lambda run: _last_if_none(sign * run.validation["value"].mean()))
    return sorted(runs, key=lambda run: _last_if_none(run.info["best"]["validation_loss"]))


def _last_if_none(value: float) -> float:
    """What is not a number comes after all that are."""
    return value if np.isfinite(value) else np.inf


def _side(kind: Kind, runs: Sequence[ReadRun], best_of: int) -> Side:
    runs = [run for run in runs if _has_curve(run)]
    if not runs:
        return Side()
    curves = [_curve(run) for run in runs]
    values = np.array([_quantity(kind, curve) for curve in curves])
    return Side(
        float(values.mean()),
        float(values.std(ddof=1)) if len(values) > 1 else np.nan,
        len({run.seed for run in runs}),
        best_of,
        tuple(told for run in runs if (told := failing_layers(run))),
        ", ".join(sorted({f"{len(curve)} levels to {curve.index.max():g}" for curve in curves})),
    )


def _quantity(kind: Kind, curve: pd.Series[float]) -> float:
    if kind.quantity == "mean":
        return float(curve.mean())
    return tables.area_under_curve(curve.index.tolist(), curve.tolist())


def failing_layers(run: ReadRun) -> str:
    """Which layers do not keep their constraints; empty for a feasible run, and for ERM, which has none to keep."""
    if run.objective == "erm" or run.info["feasible"]:
        return ""
    layers = [str(verdict["layer"]) for verdict in run.info["verdicts"] if verdict["verdict"] == "violated"]
    return f"{run.run.path.name} is infeasible at layer{'s' if len(layers) > 1 else ''} {', '.join(layers)}"


def _compared(kind: Kind, cell: Cell, runs: dict[str, list[ReadRun]]) -> Cell:
    """The cell with the interval of its difference, and the better side marked by it."""
    if not all(runs.values()):
        return cell
    rows = paired.of_pair(paired.Pair(NOISE, runs["constrained"], runs["erm"]))
    rows = rows[rows["quantity"] == kind.quantity]
    if rows.empty:
        return cell
    row = rows.iloc[0]
    sides = {name: replace(side, is_better=row["better"] == name) for name, side in cell.sides.items()}
    return replace(
        cell,
        sides=sides,
        difference=float(row["difference"]),
        low=float(row["low"]),
        high=float(row["high"]),
        unit=row["unit"],
        reason=row["reason"],
    )
