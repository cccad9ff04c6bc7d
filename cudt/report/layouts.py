"""The report's tables in the paper's layout: results of both objectives side by side, settings of the best runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cudt.report import paper
from cudt.report.collect import ReadRun
from cudt.report.compare import SIDES, best_by_validation
from cudt.report.layout import Entry, Layout
from cudt.report.paper import Cell, ResultTable, Side

_HEADINGS = {"constrained": "constr.", "erm": "unconstr."}
#: Empty cells that are named below a table; missing.txt names them all.
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
    """Ours, and in small print the paper's, the difference, and how many runs."""
    published = "" if np.isnan(side.paper) else f"{side.paper:.3f}"
    if not side.is_filled:
        return Entry(detail=published)
    beside = f"{side.difference:+.3f}" if side.is_on_its_levels else "at other levels"
    detail = f"{published}, {beside}; {side.standing.how}" if published else side.standing.how
    text = "not a number" if np.isnan(side.ours) else f"{side.ours:.3f}"
    return Entry(text, detail, side.is_better, "†" if side.standing.infeasible else "")


def _notes(table: ResultTable) -> list[str]:
    sides = [side for cell in table.cells for side in cell.sides.values() if side.is_filled]
    found = {side.levels for side in sides if side.levels}
    levels = sorted(f"{len(mine)} levels from {mine[0]:g} to {mine[-1]:g}" for mine in found)
    beside = "the paper's, the difference to it, and how many seeds" if table.is_published else "how many seeds"
    notes = [
        f"Ours ({'; '.join(levels) or 'no run yet'}), in brackets {beside}; the same levels on both sides of a cell. "
        "Best of n: chosen by validation data, on both sides."
    ]
    if any(side.is_better for side in sides):
        units = {cell.difference.unit for cell in table.cells if any(one.is_better for one in cell.sides.values())}
        alone = " Intervals of single runs are over test examples; they say nothing about other training seeds."
        notes.append(
            "Bold: better by the 95 % interval of the paired difference." + (alone if "examples" in units else "")
        )
    if any(not cell.is_even for cell in table.cells if all(side.is_filled for side in cell.sides.values())):
        notes.append(
            "Where the numbers of runs differ, the best of more is better by luck alone, and neither is marked."
        )
    if table.infeasible:
        notes.append("†: infeasible. " + "; ".join(table.infeasible) + ".")
    missing = table.missing
    if missing and table.is_published:
        shown = "; ".join(missing[:_FEW]) + ("; the rest is in missing.txt" if len(missing) > _FEW else "")
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
#: The γ_train at which the paper searched for the settings of video.
_OF_THE_SEARCH = 0.15
#: Model, data set, runs to choose from, and the paper's settings.
_Line = tuple[str, str, list[ReadRun], dict[str, float]]
_PUBLISHED = {
    "dual_video.csv": "Dual hyper-parameters of the best runs, video",
    "dual_language.csv": "Dual hyper-parameters of the best runs, language",
    "dual_llama.csv": "Hyper-parameters of the best run, Llama",
}


def hyper_parameters(runs: Sequence[ReadRun]) -> tuple[list[Layout], pd.DataFrame]:
    """Settings of the best constrained run, beside the paper's; and all in one table.

    Losses of other data, depths or γ_train are other losses, so that the best is chosen among runs that share these.
    """
    constrained = [run for run in runs if run.objective == "constrained"]
    layouts, rows, used = [], [], set()
    for file, title in _PUBLISHED.items():
        lines = []
        for row in pd.read_csv(paper.folder() / file).to_dict("records"):
            mine = [run for run in constrained if _stands_for(run, row)]
            used |= {run.run.path for run in mine}
            places = _by_place(mine) or {("", "", 0, 0.0): []}
            lines += [(row["model"], row.get("dataset", place[1]), places[place], _as_rates(row)) for place in places]
        layouts.append(_settings_layout(file.removesuffix(".csv").replace("_", "-"), title, lines))
        rows += [_settings_row(*line) for line in lines]
    others = _by_place([run for run in constrained if run.run.path not in used])
    lines = [(place[0], place[1], found, {}) for place, found in others.items()]
    if lines:
        layouts.append(_settings_layout("dual-other", "Hyper-parameters of the best runs, other recipes", lines))
        rows += [_settings_row(*line) for line in lines]
    return layouts, pd.DataFrame(rows)


def _by_place(runs: Sequence[ReadRun]) -> dict[tuple[str, str, int, float], list[ReadRun]]:
    """By recipe, data set, L and γ_train."""
    places: dict[tuple[str, str, int, float], list[ReadRun]] = {}
    for run in runs:
        place = (run.recipe, run.run.recipe.settings.task.name, run.info.layers, run.info.gamma_train)
        places.setdefault(place, []).append(run)
    return dict(sorted(places.items()))


def _stands_for(run: ReadRun, row: Mapping[Any, Any]) -> bool:
    """Whether a run is of a model, a data set and a γ_train that the paper prints settings for."""
    named = run.run.recipe.settings.published
    if named is None or named.model != row["model"] or not paper.is_published(run):
        return False
    if "dataset" not in row:
        # Of video, one row for all: found at γ_train = 0.15.
        return run.metric == "RMSE" and run.info.gamma_train == _OF_THE_SEARCH
    depth = named.model != "UT" or run.info.layers == row["layers"]
    return named.dataset == row["dataset"] and depth and run.info.gamma_train == row["gamma_train"]


def _as_rates(row: Mapping[Any, Any]) -> dict[str, float]:
    """The paper's settings, α as the rate of its equations: its tables print retentions, two of them ten times."""
    settings = {key: float(row[key]) for key in _SETTINGS if key in row}
    retention = settings["alpha"] / 10 if settings["alpha"] > 1 else settings["alpha"]
    return {**settings, "alpha": round(1 - retention, 6)}


def _ours(run: ReadRun) -> dict[str, float]:
    settings = run.run.recipe.settings
    lora = getattr(settings.model, "lora", None)
    found = {
        "layers": run.info.layers,
        "gamma_train": run.info.gamma_train,
        "alpha": settings.descent.alpha,
        "f_0": run.info.reference,
        "beta": settings.descent.beta,
        "eta_2": settings.descent.dual.learning_rate,
    }
    adapter = {"lora_rank": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout} if lora else {}
    return {**found, **adapter}


def _settings_row(model: str, dataset: str, runs: Sequence[ReadRun], published: dict[str, float]) -> dict[str, Any]:
    best = best_by_validation(runs)[:1]
    ours = _ours(best[0]) if best else {}
    row: dict[str, Any] = {"model": model, "dataset": dataset, "best_of": len(runs)}
    for key in _SETTINGS:
        row[key], row[f"{key}_paper"] = ours.get(key), published.get(key)
    return {**row, "run": str(best[0].run.path) if best else ""}


def _settings_layout(stem: str, title: str, lines: Sequence[_Line]) -> Layout:
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
