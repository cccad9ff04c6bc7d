"""Tables of the settings of the best constrained runs, next to those the paper prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cudt.report.collect import ReadRun
from cudt.report.comparable import CONSTRAINED, SIDES, by_cell, by_group
from cudt.report.compare import criterion
from cudt.report.published import folder, is_published
from cudt.report.text_table import Entry, TextTable

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
#: The γ_train at which the paper searched the settings for video.
_SEARCHED_AT = 0.15
#: The paper's unit of loss in ours. ViT's is that of its image processor, three channels of numbers
#: from −1 to 1; a pixel in one channel from 0 to 255 has 127.5² times the squared error, and there
#: is a third of them.
_UNIT_OF_LOSS = {"ViT": 127.5**2 / 3}
#: Model, data set, runs to select from (the best first), and the paper's settings.
_Line = tuple[str, str, list[ReadRun], dict[str, float]]
_FILES = {
    "dual_video.csv": "Dual hyper-parameters of the best runs, video",
    "dual_language.csv": "Dual hyper-parameters of the best runs, language",
    "dual_llama.csv": "Hyper-parameters of the best run, Llama",
}


def hyper_parameters(runs: Sequence[ReadRun]) -> tuple[list[TextTable], pd.DataFrame]:
    """The settings of the best constrained run of each cell next to the paper's; and all of them as
    one long table.
    """
    constrained = [run for mine in by_cell(runs).values() for run in _best_first(mine)]
    tables, rows, used = [], [], set()
    for file, title in _FILES.items():
        lines: list[_Line] = []
        for row in pd.read_csv(folder() / file).to_dict("records"):
            mine = [run for run in constrained if _belongs_to(run, row)]
            used |= {run.run.path for run in mine}
            lines += _lines_of_row(row, mine)
        tables.append(_table(file.removesuffix(".csv").replace("_", "-"), title, lines))
        rows += [_row(*line) for line in lines]
    others = by_cell([run for run in constrained if run.run.path not in used])
    lines = [
        (cell.model, f"{cell.dataset}{cell.apart}", found, {}) for cell, found in others.items()
    ]
    if lines:
        tables.append(
            _table("dual-other", "Hyper-parameters of the best runs, other recipes", lines)
        )
        rows += [_row(*line) for line in lines]
    return tables, pd.DataFrame(rows)


def _best_first(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """The constrained runs of a cell, by the criterion of its comparison with ERM, so that all
    tables have one best.
    """
    rank = criterion([run for run in runs if run.objective in SIDES])
    return sorted((run for run in runs if run.objective == CONSTRAINED), key=rank)


def _lines_of_row(row: Mapping[Any, Any], runs: Sequence[ReadRun]) -> list[_Line]:
    """A line for each cell of the runs that belong to one row of the paper's; one without runs if
    there are none.

    Losses are comparable only within a cell, so the best run is selected within each.
    """
    printed = printed_settings(row)
    if not runs:
        return [(row["model"], row.get("dataset", ""), [], printed)]
    return [
        (row["model"], row.get("dataset", cell.dataset), mine, printed)
        for cell, mine in by_cell(runs).items()
    ]


def _belongs_to(run: ReadRun, row: Mapping[Any, Any]) -> bool:
    """Whether a run has the model, data set and γ_train that a row of the paper prints settings
    for.
    """
    named = run.run.recipe.settings.published
    if named is None or named.model != row["model"] or not is_published(run):
        return False
    if "dataset" not in row:
        # For video, the paper prints one row for all data sets.
        return run.metric == "RMSE" and run.gamma_train == _SEARCHED_AT
    is_of_depth = named.model != "UT" or run.n_layers == row["layers"]
    return named.dataset == row["dataset"] and is_of_depth and run.gamma_train == row["gamma_train"]


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


def _ours(run: ReadRun) -> dict[str, float]:
    settings = run.run.recipe.settings
    lora = getattr(settings.model, "lora", None)
    found = {
        "layers": run.n_layers,
        "gamma_train": run.gamma_train,
        "alpha": settings.descent.alpha,
        "f_0": run.reference,
        "beta": settings.descent.beta,
        "eta_2": settings.descent.dual.learning_rate,
    }
    adapter = (
        {"lora_rank": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
        if lora
        else {}
    )
    return {**found, **adapter}


def _row(
    model: str, dataset: str, runs: Sequence[ReadRun], printed: dict[str, float]
) -> dict[str, Any]:
    best = runs[:1]
    ours = _ours(best[0]) if best else {}
    # Runs that differ in their seed alone were not searched.
    best_of = len(runs) if len(by_group(runs)) > 1 else 0
    row: dict[str, Any] = {
        "model": model,
        "dataset": dataset,
        "n_runs": len(runs),
        "best_of": best_of,
    }
    for key in _SETTINGS:
        row[key], row[f"{key}_paper"] = ours.get(key), printed.get(key)
    return {**row, "run": str(best[0].run.path) if best else ""}


def _table(stem: str, title: str, lines: Sequence[_Line]) -> TextTable:
    rows = [_row(*line) for line in lines]
    keys = [
        key
        for key in _SETTINGS
        if any(_is_number(row[key]) or _is_number(row[f"{key}_paper"]) for row in rows)
    ]
    entries = [
        [
            Entry(row["model"]),
            Entry(row["dataset"]),
            *(_setting(row, key) for key in keys),
            Entry(_runs_text(row)),
        ]
        for row in rows
    ]
    headings = ["model", "data set", *(_SETTINGS[key] for key in keys), "runs"]
    notes = [
        "α is the rate of the equations; the paper's tables print 1 − α. In brackets the paper's "
        "settings, "
        "f_0 and β in cudt's unit of loss."
    ]
    return TextTable(stem, title, [("", len(headings))], headings, entries, notes)


def _runs_text(row: dict[str, Any]) -> str:
    if row["best_of"]:
        return f"best of {row['best_of']}"
    return f"{row['n_runs']} seed{'' if row['n_runs'] == 1 else 's'}" if row["n_runs"] else ""


def _setting(row: dict[str, Any], key: str) -> Entry:
    ours, printed = (
        f"{value:.4g}" if _is_number(value) else "" for value in (row[key], row[f"{key}_paper"])
    )
    return Entry(ours, printed)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not np.isnan(value)
