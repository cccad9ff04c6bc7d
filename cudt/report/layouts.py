"""The report's tables in the paper's layout: results of both objectives side by side, settings of the best runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cudt.report import paper
from cudt.report.collect import ReadRun
from cudt.report.layout import Entry, Layout
from cudt.report.paper import SIDES, Cell, ResultTable, Side

_HEADINGS = {"constrained": "constr.", "erm": "unconstr."}
#: Empty cells that are named each by itself; the CSV has them all.
_FEW = 12


def of_results(table: ResultTable) -> Layout:
    """Model, L and γ_train against data sets, constrained beside unconstrained."""
    datasets = list(dict.fromkeys(cell.place.dataset for cell in table.cells))
    rows = []
    for (model, layers, gamma), cells in itertools.groupby(table.cells, key=_row_of):
        found = {cell.place.dataset: cell for cell in cells}
        entries = [entry for name in datasets for entry in _entries(found.get(name))]
        rows.append([Entry(model), Entry(f"{layers}"), Entry(f"{gamma:g}"), *entries])
    groups = [("", 3), *((name, 2) for name in datasets)]
    headings = ["model", "L", "γ_train", *(_HEADINGS[side] for _ in datasets for side in SIDES)]
    return Layout(table.stem, table.title, groups, headings, rows, _notes(table))


def _row_of(cell: Cell) -> tuple[str, int, float]:
    return cell.place.model, cell.place.layers, cell.place.gamma_train


def _entries(cell: Cell | None) -> list[Entry]:
    return [_entry(cell.sides[side]) if cell is not None else Entry() for side in SIDES]


def _entry(side: Side) -> Entry:
    """Ours, and in small print the paper's, the difference, and how many seeds."""
    published = "" if np.isnan(side.paper) else f"{side.paper:.3f}"
    if not side.seeds:
        return Entry(detail=published)
    number = f"best of {side.best_of}" if side.best_of else f"{side.seeds} seed{'s' if side.seeds > 1 else ''}"
    beside = f"{published}, {side.difference:+.3f}; " if published else ""
    return Entry(f"{side.ours:.3f}", beside + number, side.is_better, "†" if side.infeasible else "")


def _notes(table: ResultTable) -> list[str]:
    levels = sorted({side.levels for cell in table.cells for side in cell.sides.values() if side.levels})
    beside = (
        "in brackets the paper's, the difference to it, and how many seeds"
        if table.is_published
        else "seeds in brackets"
    )
    notes = [
        f"Ours ({'; '.join(levels) or 'no run yet'}); {beside}. Bold: better by the 95 % interval of the paired "
        "difference. Best of n: chosen by validation data, on both sides."
    ]
    if table.infeasible:
        notes.append("†: infeasible. " + "; ".join(table.infeasible) + ".")
    missing = table.missing
    if missing and table.is_published:
        shown = "; ".join(missing[:_FEW]) + (f"; and {len(missing) - _FEW} more" if len(missing) > _FEW else "")
        notes.append(f"No run yet for {len(missing)} of {2 * len(table.cells)} cells: {shown}.")
    return notes


# ---------------------------------------------------------------- hyper-parameters

_SETTINGS = {
    "layers": "L",
    "gamma_train": "γ_train",
    "alpha": "α",
    "f_0": "f_0",
    "beta": "β",
    "eta_2": "η₂",
    "lora_rank": "LoRA r",
    "lora_alpha": "LoRA α",
    "lora_dropout": "LoRA dropout",
}
_PUBLISHED = {
    "dual_video.csv": "Dual hyper-parameters of the best runs, video",
    "dual_language.csv": "Dual hyper-parameters of the best runs, language",
    "dual_llama.csv": "Hyper-parameters of the best run, Llama",
}


def hyper_parameters(runs: Sequence[ReadRun]) -> tuple[list[Layout], pd.DataFrame]:
    """Settings of the best constrained run of each model (and data set), beside the paper's; and all in one table."""
    constrained = [run for run in runs if run.objective == "constrained"]
    layouts, rows, used = [], [], set()
    for file, title in _PUBLISHED.items():
        lines = []
        for row in pd.read_csv(paper.folder() / file).to_dict("records"):
            mine = [run for run in constrained if _stands_for(run, row)]
            used |= {run.recipe for run in mine}
            lines.append((row["model"], row.get("dataset", "all"), mine, _as_rates(row)))
        layouts.append(_settings_layout(file.removesuffix(".csv").replace("_", "-"), title, lines))
        rows += [_settings_row(*line) for line in lines]
    others = sorted({run.recipe for run in constrained} - used)
    lines = [(name, "", [run for run in constrained if run.recipe == name], {}) for name in others]
    if lines:
        layouts.append(_settings_layout("dual-other", "Hyper-parameters of the best runs, other recipes", lines))
        rows += [_settings_row(*line) for line in lines]
    return layouts, pd.DataFrame(rows)


def _stands_for(run: ReadRun, row: Mapping[Any, Any]) -> bool:
    named = run.run.recipe.settings.published
    if named is None or named.model != row["model"]:
        return False
    # Of video, the paper has one row for all data sets; of text, UT is in another table.
    return named.dataset == row["dataset"] if "dataset" in row else run.metric == "RMSE"


def _as_rates(row: Mapping[Any, Any]) -> dict[str, float]:
    """The paper's settings, α as the rate of its equations: its tables print retentions, two of them ten times."""
    settings = {key: float(row[key]) for key in _SETTINGS if key in row}
    retention = settings["alpha"] / 10 if settings["alpha"] > 1 else settings["alpha"]
    return {**settings, "alpha": round(1 - retention, 6)}


def _ours(run: ReadRun) -> dict[str, float]:
    settings = run.run.recipe.settings
    lora = getattr(settings.model, "lora", None)
    found = {
        "layers": run.info.get("layers", np.nan),
        "gamma_train": run.info["gamma_train"],
        "alpha": settings.descent.alpha,
        "f_0": run.info["reference"],
        "beta": settings.descent.beta,
        "eta_2": settings.descent.dual.learning_rate,
    }
    adapter = {"lora_rank": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout} if lora else {}
    return {**found, **adapter}


def _settings_row(model: str, dataset: str, runs: Sequence[ReadRun], published: dict[str, float]) -> dict[str, Any]:
    best = paper.best_by_validation(runs)[:1]
    ours = _ours(best[0]) if best else {}
    row: dict[str, Any] = {"model": model, "dataset": dataset, "best_of": len(runs)}
    for key in _SETTINGS:
        row[key], row[f"{key}_paper"] = ours.get(key), published.get(key)
    return {**row, "run": str(best[0].run.path) if best else ""}


def _settings_layout(
    stem: str, title: str, lines: Sequence[tuple[str, str, list[ReadRun], dict[str, float]]]
) -> Layout:
    rows = [_settings_row(*line) for line in lines]
    keys = [key for key in _SETTINGS if any(_is_number(row[key]) or _is_number(row[f"{key}_paper"]) for row in rows)]
    entries = [
        [Entry(row["model"]), Entry(row["dataset"]), *(_setting(row, key) for key in keys), Entry(str(row["best_of"]))]
        for row in rows
    ]
    headings = ["model", "data set", *(_SETTINGS[key] for key in keys), "best of"]
    notes = ["α is the rate of the equations; the paper's tables print retentions, 1 − α. The paper's in brackets."]
    return Layout(stem, title, [("", len(headings))], headings, entries, notes)


def _setting(row: dict[str, Any], key: str) -> Entry:
    ours, published = (f"{value:.4g}" if _is_number(value) else "" for value in (row[key], row[f"{key}_paper"]))
    return Entry(ours, published)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not np.isnan(value)
