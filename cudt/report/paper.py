"""The paper's tables with our numbers beside the printed ones, and the same for other recipes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.config.differences import names_apart
from cudt.report.compare import (
    BASELINE,
    CONSTRAINED,
    OF_ANY_DEPTH,
    SIDES,
    Cell,
    by_cell,
    criterion,
)
from cudt.report.frames import each
from cudt.report.paired import Comparison, Difference, Differences
from cudt.report.text_table import Entry, TextTable

#: The noise of the paper's tables.
NOISE = "gaussian"
_HEADINGS = {CONSTRAINED: "constr.", BASELINE: "unconstr."}
#: Empty cells listed below a table; missing.txt lists all of them.
_FEW = 12


def folder() -> Path:
    """The paper's numbers: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    places = (package / "paper", package.parent / "data" / "paper")
    return next((path for path in places if path.is_dir()), package)


# ---------------------------------------------------------------- average RMSE, accuracy AUC


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's result tables: its metric, and the number it reads off a curve."""

    stem: str
    title: str
    metric: str
    quantity: str
    file: str
    levels: tuple[float, ...]
    """The paper's levels; for text our reading of it, since it does not print the range of its
    areas."""

    def printed(self) -> dict[Cell, dict[str, float]]:
        """The paper's number for each objective of each cell, in the paper's order."""
        found: dict[Cell, dict[str, float]] = {}
        for row in pd.read_csv(folder() / self.file).to_dict("records"):
            place = int(row["layers"]), float(row["gamma_train"]), row["dataset"]
            cell = Cell(row["model"], self.metric, *place)
            found.setdefault(cell, {})[row["objective"]] = float(row["value"])
        return found


PAPER_TABLES = [
    PaperTable(
        "average-rmse", "Average RMSE over the levels of Gaussian noise", "RMSE", "mean",
        "rmse.csv", (0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0, 1.5),
    ),
    PaperTable(
        "accuracy-auc", "Area under accuracy against γ of Gaussian noise", "accuracy", "auc",
        "accuracy_auc.csv", tuple(round(0.15 * step, 2) for step in range(15)),
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Both sides of one cell: our numbers, the paper's, and our difference."""

    kind: PaperTable
    cell: Cell
    compared: Comparison
    printed: Mapping[str, float]
    difference: Difference

    @property
    def is_on_its_levels(self) -> bool:
        """Whether ours is over the paper's levels; only then may it be compared with the paper's."""
        wanted, found = self.kind.levels, self.compared.levels
        return len(wanted) == len(found) and np.allclose(wanted, found)

    @property
    def input(self) -> float:
        """The mean of the noisy input itself over the levels; NaN where it is no answer."""
        points = self.compared.frames.points
        for run in (run for side in SIDES for run in self.compared.sides[side].runs):
            mine = points[(points["run"] == run) & (points["perturbation"] == NOISE)]
            curve = mine.set_index("gamma")["input"]
            if curve.notna().any():
                return float(curve[self.compared.levels].mean(skipna=False))
        return np.nan

    def to_paper(self, side: str) -> float:
        """Ours minus the paper's."""
        ours = self.compared.mean(side, self.kind.quantity)
        return ours - self.printed.get(side, np.nan) if self.is_on_its_levels else np.nan

    def missing(self) -> list[str]:
        """Each side without a run, and why where that is known."""
        sides = [(name, side) for name, side in self.compared.sides.items() if not side.runs]
        return [
            f"{self.cell}: {name}" + (f"; {side.problem}" if side.problem else "")
            for name, side in sides
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table's CSV, one for each side."""
        cell, between, rows = self.cell, self.difference, []
        for name, side in self.compared.sides.items():
            values = self.compared.values(name, self.kind.quantity)
            levels = self.compared.levels if side.runs else []
            failing = "; ".join(f"{path}: {layers}" for path, _, layers in side.infeasible)
            rows.append({
                **{"model": cell.model, "layers": cell.layers, "gamma_train": cell.gamma_train},
                **{"dataset": cell.dataset, "objective": name},
                "ours": self.compared.mean(name, self.kind.quantity),
                "std": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
                **{"seeds": side.seeds, "best_of": side.best_of},
                "levels": " ".join(f"{level:g}" for level in levels),
                "paper": self.printed.get(name, np.nan),
                "difference": self.to_paper(name),
                "input": self.input,
                "constrained_minus_erm": between.difference,
                **{"low": between.low, "high": between.high, "unit": between.unit},
                "is_better": between.better == name,
                "infeasible": failing,
                "reason": between.reason or side.problem,
            })  # fmt: skip
        return rows


@dataclass(frozen=True)
class ResultTable:
    """The results of one table: in the paper's cells and order, or those of other recipes."""

    kind: PaperTable
    is_published: bool
    results: list[Result] = field(default_factory=list)

    @property
    def stem(self) -> str:
        """The name of its files."""
        return self.kind.stem if self.is_published else f"{self.kind.stem}-other"

    @property
    def missing(self) -> list[str]:
        """The paper's cells without a run."""
        return [line for one in self.results for line in one.missing()] if self.is_published else []

    @property
    def has_runs(self) -> bool:
        """Whether a number is ours."""
        return any(side.runs for one in self.results for side in one.compared.sides.values())

    def csv(self) -> pd.DataFrame:
        """A row for each side of each cell."""
        return pd.DataFrame([row for result in self.results for row in result.rows()])

    def text(self) -> TextTable:
        """Model, L and γ_train against data sets, constrained next to unconstrained."""
        datasets = [*dict.fromkeys(result.cell.dataset for result in self.results)]
        has_input = any(np.isfinite(result.input) for result in self.results)
        of_dataset = [*_HEADINGS.values(), *(["input"] if has_input else [])]
        columns = [("", name) for name in ("model", "L", "γ_train")]
        columns += [(name, heading) for name in datasets for heading in of_dataset]
        rows = []
        for (model, layers, gamma), mine in itertools.groupby(
            self.results, key=lambda one: (one.cell.model, one.cell.layers, one.cell.gamma_train)
        ):
            found = {result.cell.dataset: result for result in mine}
            row = [Entry(model), Entry(f"{layers}"), Entry(f"{gamma:g}")]
            for name in datasets:
                row += [_entry(found.get(name), side) for side in SIDES]
                value = found[name].input if name in found else np.nan
                row += [Entry("" if np.isnan(value) else f"{value:.3f}")] if has_input else []
            rows.append(row)
        title = self.kind.title + ("" if self.is_published else ", other recipes")
        return TextTable(self.stem, title, columns, rows, self._notes(has_input), self.has_runs)

    def _notes(self, has_input: bool) -> list[str]:
        every = [result.compared for result in self.results]
        filled = {tuple(one.levels) for one in every if one.levels}
        levels = sorted(f"{len(mine)} levels from {mine[0]:g} to {mine[-1]:g}" for mine in filled)
        printed = "the paper's number, the difference to it, and " if self.is_published else ""
        notes = [
            f"Our numbers ({'; '.join(levels) or 'no run yet'}); in brackets {printed}the number of "
            "seeds. Both sides of a cell are measured at the same levels. Best of n: selected on "
            "validation data, on both sides."
        ]
        better = {one.difference.unit for one in self.results if one.difference.better}
        if better:
            over = " and ".join(sorted(better & {"examples", "clips"}))
            single = f" Intervals of single runs are over test {over} and say nothing about other"
            notes.append(
                "Bold: better according to the 95 % interval of the paired difference."
                + (f"{single} training seeds." if over else "")
            )
        if not all(one.is_even for one in every if all(side.runs for side in one.sides.values())):
            notes.append(
                "Where the numbers of runs differ, neither side is bold: the best of more runs wins "
                "by luck alone."
            )
        if has_input:
            notes.append("Input: the noisy input itself, unchanged.")
        failing = [
            f"{one.cell}: {side.infeasible_text}"
            for one in self.results
            for side in one.compared.sides.values()
            if side.infeasible
        ]
        if failing:
            notes.append(f"†: infeasible, a constraint is not kept. {'; '.join(failing)}.")
        if missing := self.missing:
            shown = "; ".join(missing[:_FEW])
            rest = "; the rest is in missing.txt" if len(missing) > _FEW else ""
            count = f"{len(missing)} of {2 * len(self.results)}"
            notes.append(f"No run yet for {count} numbers: {shown}{rest}.")
        return notes


def _entry(result: Result | None, name: str) -> Entry:
    """Our number; in small print the paper's, the difference to it, and the number of runs."""
    if result is None:
        return Entry()
    side, paper = result.compared.sides[name], result.printed.get(name)
    printed = "" if paper is None else f"{paper:.3f}"
    if not side.runs:
        return Entry(detail=printed)
    ours = result.compared.mean(name, result.kind.quantity)
    apart = f"{result.to_paper(name):+.3f}" if result.is_on_its_levels else "at other levels"
    detail = f"{printed}, {apart}; {side.how}" if printed else side.how
    text = "not a number" if np.isnan(ours) else f"{ours:.3f}"
    return Entry(text, detail, result.difference.better == name, "†" if side.infeasible else "")


def result_tables(runs: pd.DataFrame, differences: Differences) -> list[ResultTable]:
    """The paper's tables where there are runs for them, and the same for other recipes."""
    tables = []

    def result(
        kind: PaperTable, cell: Cell, mine: pd.DataFrame, printed: dict[str, float]
    ) -> Result:
        compared = differences.comparison(mine, NOISE)
        return Result(kind, cell, compared, printed, compared.difference(kind.quantity))

    for kind in PAPER_TABLES:
        mine = runs[(runs["metric"] == kind.metric) & runs["objective"].isin(SIDES)]
        printed = kind.printed()
        published = mine[mine["is_published"]]
        places = pd.Series([_place(row) for row in each(published)], published.index, object)
        members = {cell: published[places == _any_depth(cell)] for cell in printed}
        shown = {run for found in members.values() for run in found.index}
        if shown:
            results = [result(kind, cell, members[cell], printed[cell]) for cell in printed]
            tables.append(ResultTable(kind, True, results))
        others = _others(mine, shown)
        if others:
            results = [result(kind, cell, found, {}) for cell, found in others.items()]
            tables.append(ResultTable(kind, False, results))
    return tables


def _place(row: Any) -> Cell:
    """The cell of the paper's tables that a published run belongs to."""
    model, dataset = row.published["model"], row.published["dataset"]
    return _any_depth(Cell(model, row.metric, row.n_layers, row.gamma_train, dataset))


def _any_depth(cell: Cell) -> Cell:
    """The cell without the depth of a pretrained model: the paper prints 12 layers for DistilBERT,
    which has 6.
    """
    return cell if cell.model in OF_ANY_DEPTH else replace(cell, layers=0)


def _others(runs: pd.DataFrame, shown: set[int]) -> dict[Cell, pd.DataFrame]:
    """The runs that are in none of the paper's cells, by cell, named apart by settings of the task.

    ERM runs alone are shown with the constrained runs of their cell, even if the paper's table has
    those already.
    """
    found = {}
    for cell, mine in by_cell(runs).items():
        left = mine[~mine.index.isin(shown)]
        if len(left) and (left["objective"] == BASELINE).all():
            left = pd.concat([left, mine[mine["objective"] == CONSTRAINED]])
        if len(left):
            found[cell] = left
    alike: dict[str, list[Cell]] = {}
    for cell in found:
        alike.setdefault(str(replace(cell, weights="best", loss="")), []).append(cell)
    named = {}
    origin = ("model.pretrained", "training.select", "test data")
    for cells in alike.values():
        settings = [
            {
                k: v
                for k, v in found[cell]["settings"].iloc[0].items()
                if k.startswith("task.") or k in origin
            }
            for cell in cells
        ]
        for cell, apart in zip(cells, names_apart(settings), strict=True):
            named[replace(cell, dataset=f"{cell.dataset} {apart}".strip())] = found[cell]
    return named


# ---------------------------------------------------------------- dual hyper-parameters

_SETTINGS = {
    **{"layers": "L", "gamma_train": "γ_train", "alpha": "α", "f_0": "f_0", "beta": "β"},
    **{
        "eta_2": "η₂",
        "lora_rank": "LoRA r",
        "lora_alpha": "LoRA α",
        "lora_dropout": "LoRA dropout",
    },
}
#: The γ_train at which the paper searched the settings for video.
_SEARCHED_AT = 0.15
#: The paper's unit of loss in ours. ViT's is that of its image processor, three channels of numbers
#: from −1 to 1; a pixel in one channel from 0 to 255 has 127.5² times the squared error, and there
#: is a third of them.
_UNIT_OF_LOSS = {"ViT": 127.5**2 / 3}
_FILES = {
    "dual_video.csv": "Dual hyper-parameters of the best runs, video",
    "dual_language.csv": "Dual hyper-parameters of the best runs, language",
    "dual_llama.csv": "Hyper-parameters of the best run, Llama",
}


def hyper_parameters(runs: pd.DataFrame) -> tuple[list[TextTable], pd.DataFrame]:
    """The settings of the best constrained run of each cell next to the paper's; and all of them as
    one long table.
    """
    best_first = [_best_first(mine) for mine in by_cell(runs).values()]
    constrained = pd.concat(best_first) if best_first else runs.iloc[:0]
    tables, used = [], set[int]()
    rows: list[dict[str, Any]] = []
    for file, title in _FILES.items():
        lines = []
        for row in pd.read_csv(folder() / file).to_dict("records"):
            chosen = [run.Index for run in each(constrained) if _belongs_to(run, row)]
            mine = constrained.loc[chosen]
            used |= {*mine.index}
            # Losses are comparable only within a cell, so the best run is selected within each.
            cells = by_cell(mine) if len(mine) else {None: mine}
            for cell, found in cells.items():
                dataset = row.get("dataset", cell.dataset if cell else "")
                lines.append(_line(row["model"], dataset, found, printed_settings(row)))
        tables.append(_settings_table(file.removesuffix(".csv").replace("_", "-"), title, lines))
        rows += lines
    others = by_cell(constrained[~constrained.index.isin(used)])
    lines = [
        _line(cell.model, f"{cell.dataset}{cell.apart}", found, {})
        for cell, found in others.items()
    ]
    if lines:
        title = "Hyper-parameters of the best runs, other recipes"
        tables.append(_settings_table("dual-other", title, lines))
    return [table for table in tables if table.has_runs], pd.DataFrame([*rows, *lines])


def _best_first(runs: pd.DataFrame) -> pd.DataFrame:
    """The constrained runs of a cell, by the criterion of its comparison with ERM."""
    rank = criterion(runs[runs["objective"].isin(SIDES)])
    mine = runs[runs["objective"] == CONSTRAINED]
    return mine.loc[rank[mine.index].sort_values(kind="stable").index]


def _belongs_to(run: Any, row: Mapping[Any, Any]) -> bool:
    """Whether a run has the model, data set and γ_train that the paper prints settings for."""
    if not run.is_published or run.published["model"] != row["model"]:
        return False
    if "dataset" not in row:
        # For video, the paper prints one row for all data sets.
        return bool(run.metric == "RMSE" and run.gamma_train == _SEARCHED_AT)
    is_of_depth = row["model"] != "UT" or run.n_layers == row["layers"]
    is_of_data = run.published["dataset"] == row["dataset"]
    return bool(is_of_data and is_of_depth and run.gamma_train == row["gamma_train"])


def printed_settings(row: Mapping[Any, Any]) -> dict[str, float]:
    """The settings of a row of the paper's tables, as recipes have them.

    α is the rate of the equations; the tables print 1 − α, two of them times ten. A loss s times as
    large has s times the f_0, and β/s: a slack is then s times as large too, and its cost β/2·u²
    grows like the loss.
    """
    settings = {key: float(row[key]) for key in _SETTINGS if key in row}
    retention = settings["alpha"] / 10 if settings["alpha"] > 1 else settings["alpha"]
    scale = _UNIT_OF_LOSS.get(row["model"], 1.0)
    losses = {"f_0": settings["f_0"] * scale, "beta": settings["beta"] / scale}
    return {**settings, **losses, "alpha": round(1 - retention, 6)}


def _line(
    model: str, dataset: str, runs: pd.DataFrame, printed: dict[str, float]
) -> dict[str, Any]:
    """The settings of the first of some runs, which is the best, next to the paper's."""
    ours: dict[str, Any] = {}
    for run in each(runs.iloc[:1]):
        lora = run.lora or {}
        ours = {
            **{"layers": run.n_layers, "gamma_train": run.gamma_train, "f_0": run.reference},
            **{"alpha": _alpha(run.descent["alpha"]), "beta": run.descent["beta"]},
            "eta_2": run.descent["dual"]["learning_rate"],
            **{f"lora_{key}": lora[key] for key in ("rank", "alpha", "dropout") if key in lora},
        }
    # Runs that differ in their seed alone were not searched.
    best_of = len(runs) if runs["group"].nunique() > 1 else 0
    row = {"model": model, "dataset": dataset, "n_runs": len(runs), "best_of": best_of}
    for key in _SETTINGS:
        row |= {key: ours.get(key), f"{key}_paper": printed.get(key)}
    return {**row, "run": str(runs["path"].iloc[0]) if len(runs) else ""}


def _alpha(alpha: Any) -> Any:
    """The rate; `target_loss=0.4` where it follows from a loss to reach."""
    return "target_loss={!r}".format(alpha["target_loss"]) if isinstance(alpha, dict) else alpha


def _settings_table(stem: str, title: str, lines: Sequence[dict[str, Any]]) -> TextTable:
    keys = [
        key
        for key in _SETTINGS
        if any(_number(line[key]) or _number(line[f"{key}_paper"]) for line in lines)
    ]
    rows = []
    for line in lines:
        seeds = (
            f"{line['n_runs']} seed{'' if line['n_runs'] == 1 else 's'}" if line["n_runs"] else ""
        )
        how = f"best of {line['best_of']}" if line["best_of"] else seeds
        settings = [Entry(_number(line[key]), _number(line[f"{key}_paper"])) for key in keys]
        rows.append([Entry(line["model"]), Entry(line["dataset"]), *settings, Entry(how)])
    headings = ["model", "data set", *(_SETTINGS[key] for key in keys), "runs"]
    note = (
        "α is the rate of the equations; the paper's tables print 1 − α. In brackets the paper's "
        "settings, f_0 and β in cudt's unit of loss."
    )
    has_runs = any(line["n_runs"] for line in lines)
    return TextTable(stem, title, [("", heading) for heading in headings], rows, [note], has_runs)


def _number(value: Any) -> str:
    """Four digits; empty for what is no number."""
    is_number = isinstance(value, int | float) and not np.isnan(value)
    return f"{value:.4g}" if is_number else ""
