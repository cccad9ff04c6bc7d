"""The paper's tables with our numbers beside the printed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.report.compare import BASELINE, CONSTRAINED, OF_ANY_DEPTH, SIDES, by_cell, criterion
from cudt.report.frames import each
from cudt.report.paired import Comparison, Differences
from cudt.report.tables import TextTable

#: The noise of the paper's tables.
NOISE = "gaussian"
_HEADINGS = {CONSTRAINED: "constr.", BASELINE: "unconstr."}
#: What a cell of the paper's result tables is named by.
_PLACE = ["model", "layers", "gamma_train", "dataset"]


def folder() -> Path:
    """The paper's numbers: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    places = (package / "paper", package.parent / "data" / "paper")
    return next((path for path in places if path.is_dir()), package)


def tables(runs: pd.DataFrame, differences: Differences) -> tuple[list[TextTable], dict[str, str]]:
    """The paper's tables that have runs; and further files, by name: CSV, and what is missing."""
    shown, files, missing = [], {}, []
    for kind in PAPER_TABLES:
        rows = results(kind, runs, differences)
        if rows["ours"].notna().any():
            table = result_table(kind, rows)
            shown.append(table)
            files[f"{table.stem}.csv"] = rows.to_csv(index=False)
            empty = rows[rows["seeds"] == 0]
            missing += [" ".join(map(str, row)) for row in empty[[*_PLACE, "objective"]].values]
    if missing:
        files["missing.txt"] = "".join(f"{line}\n" for line in missing)
    settings = hyper_parameters(runs)
    if settings["n_runs"].sum():
        files["dual.csv"] = settings.to_csv(index=False)
    return [*shown, *settings_tables(settings)], files


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


def results(kind: PaperTable, runs: pd.DataFrame, differences: Differences) -> pd.DataFrame:
    """A row for each printed number: the paper's, ours, and the difference of our two sides."""
    mine = runs[runs["is_published"] & (runs["metric"] == kind.metric)]
    members: dict[Any, list[int]] = {}
    for run in each(mine[mine["objective"].isin(SIDES)]):
        model, dataset = run.published["model"], run.published["dataset"]
        key = model, _depth(model, run.n_layers), run.gamma_train, dataset
        members.setdefault(key, []).append(run.Index)
    rows: list[dict[str, Any]] = []
    compared: dict[Any, Comparison] = {}
    for printed in pd.read_csv(folder() / kind.file).to_dict("records"):
        model, layers, gamma, dataset = (printed[name] for name in _PLACE)
        key = model, _depth(model, layers), gamma, dataset
        if key not in compared:
            compared[key] = differences.comparison(members.get(key, []), NOISE)
        name = printed["objective"]
        facts = {place: printed[place] for place in _PLACE}
        rows.append({**facts, **_result(kind, compared[key], name, printed["value"])})
    return pd.DataFrame(rows)


def _depth(model: str, layers: int) -> int:
    """The depth of a row; 0 for a pretrained model: the paper prints 12 layers for DistilBERT,
    which has 6.
    """
    return layers if model in OF_ANY_DEPTH else 0


def _result(kind: PaperTable, one: Comparison, name: str, printed: float) -> dict[str, Any]:
    """One side of a cell: our number, the paper's, and our difference of both sides."""
    side, levels = one.sides[name], one.levels if one.sides[name].runs else []
    ours = one.mean(name, kind.quantity)
    # Only over the paper's levels may ours be compared with the paper's.
    is_alike = len(levels) == len(kind.levels) and np.allclose(levels, kind.levels)
    between = one.difference(kind.quantity)
    return {
        "objective": name,
        "ours": ours,
        "std": one.numbers.loc[side.runs, kind.quantity].std(),
        "seeds": len(side.runs),
        "best_of": side.best_of,
        "levels": " ".join(f"{level:g}" for level in levels),
        "paper": printed,
        "difference": ours - printed if is_alike else np.nan,
        "constrained_minus_erm": between["difference"],
        **{key: between[key] for key in ("low", "high", "unit")},
        "is_better": between["better"] == name,
        "infeasible": side.infeasible,
        "reason": between["reason"] or side.problem,
    }


def result_table(kind: PaperTable, rows: pd.DataFrame) -> TextTable:
    """Model, L and γ_train against data sets, constrained next to unconstrained."""
    made: dict[Any, dict[Any, str]] = {}
    for row in each(rows):
        key = row.model, row.layers, row.gamma_train
        first = {("", "model"): row.model, ("", "L"): f"{row.layers}"}
        line = made.setdefault(key, {**first, ("", "γ_train"): f"{row.gamma_train:g}"})
        line[row.dataset, _HEADINGS[row.objective]] = _entry(row)
    filled = rows[rows["seeds"] > 0]
    notes = [
        f"Our numbers over {' or '.join(filled['levels'].unique())}; in brackets the paper's number, "
        "the difference to it, and the number of seeds. Best of n: selected on validation data. "
        "Bold: better according to the 95 % interval of the paired difference, where both sides "
        f"have as many runs. No run yet for {len(rows) - len(filled)} of {len(rows)} numbers: "
        "missing.txt."
    ]
    if filled["unit"].isin(["examples", "clips"]).any():
        notes.append("Intervals of single runs say nothing about other training seeds.")
    for row in each(filled[filled["infeasible"] != ""]):
        place = f"{row.model} on {row.dataset}, L = {row.layers}, γ_train = {row.gamma_train:g}"
        notes.append(f"†: {place}: {row.infeasible}.")
    frame = pd.DataFrame([*made.values()]).fillna("")
    frame.columns = pd.MultiIndex.from_tuples(frame.columns)
    return TextTable(kind.stem, kind.title, frame, notes)


def _entry(row: Any) -> str:
    """`**1.680**† (1.719, -0.039; 1 seed)`."""
    if not row.seeds:
        return f"({row.paper:.3f})"
    ours = "not a number" if np.isnan(row.ours) else f"{row.ours:.3f}"
    ours = (f"**{ours}**" if row.is_better else ours) + ("†" if row.infeasible else "")
    apart = "at other levels" if np.isnan(row.difference) else f"{row.difference:+.3f}"
    seeds = f"{row.seeds} seed{'s' if row.seeds > 1 else ''}"
    how = f"best of {row.best_of}" if row.best_of else seeds
    return f"{ours} ({row.paper:.3f}, {apart}; {how})"


# ---------------------------------------------------------------- dual hyper-parameters

_SETTINGS = {
    **{"layers": "L", "gamma_train": "γ_train", "alpha": "α", "f_0": "f_0", "beta": "β"},
    **{"eta_2": "η₂", "lora_rank": "LoRA r", "lora_alpha": "LoRA α"},
    "lora_dropout": "LoRA dropout",
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


def hyper_parameters(runs: pd.DataFrame) -> pd.DataFrame:
    """The settings of the best constrained run of each cell next to the paper's."""
    cells = {cell: _best_first(mine) for cell, mine in by_cell(runs).items()}
    rows = []
    for file in _FILES:
        for printed in pd.read_csv(folder() / file).to_dict("records"):
            # Losses are comparable only within a cell, so the best run is selected within each.
            found = {
                cell: mine.loc[[run.Index for run in each(mine) if _belongs_to(run, printed)]]
                for cell, mine in cells.items()
            }
            found = {cell: mine for cell, mine in found.items() if len(mine)}
            for mine in found.values() or [runs.iloc[:0]]:
                dataset = mine["published"].iloc[0]["dataset"] if len(mine) else ""
                facts = {"file": file, "model": printed["model"]}
                facts["dataset"] = printed.get("dataset", dataset)
                rows.append({**facts, **_settings(mine, printed_settings(printed))})
    return pd.DataFrame(rows)


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


def _settings(runs: pd.DataFrame, printed: dict[str, float]) -> dict[str, Any]:
    """The settings of the first of some runs, which is the best, next to the paper's."""
    ours: dict[str, Any] = {}
    for run in each(runs.iloc[:1]):
        lora, descent = run.model.get("lora") or {}, run.descent
        ours = {
            **{"layers": run.n_layers, "gamma_train": run.gamma_train, "f_0": run.reference},
            **{"alpha": descent["alpha"], "beta": descent["beta"]},
            "eta_2": descent["dual"]["learning_rate"],
            **{f"lora_{key}": lora[key] for key in ("rank", "alpha", "dropout") if key in lora},
        }
    # Runs that differ in their seed alone were not searched.
    best_of = len(runs) if runs["group"].nunique() > 1 else 0
    row: dict[str, Any] = {"n_runs": len(runs), "best_of": best_of}
    for key in _SETTINGS:
        row |= {key: ours.get(key), f"{key}_paper": printed.get(key)}
    return {**row, "run": str(runs["path"].iloc[0]) if len(runs) else ""}


def settings_tables(settings: pd.DataFrame) -> list[TextTable]:
    """The tables that have runs: `0.1 (0.226)` is our setting with the paper's in brackets."""
    made = []
    note = (
        "α is the rate of the equations; the paper's tables print 1 − α. In brackets the paper's "
        "settings, f_0 and β in cudt's unit of loss."
    )
    for file, mine in settings.groupby("file", sort=False):
        if not mine["n_runs"].sum():
            continue
        rows = [
            {
                **{"model": row["model"], "data set": row["dataset"]},
                **{name: _setting(row[key], row[f"{key}_paper"]) for key, name in _SETTINGS.items()},
                "runs": f"best of {row['best_of']}" if row["best_of"] else f"{row['n_runs']}",
            }
            for row in mine.to_dict("records")
        ]
        frame = pd.DataFrame(rows)
        stem = str(file).removesuffix(".csv").replace("_", "-")
        made.append(TextTable(stem, _FILES[str(file)], frame.loc[:, (frame != "").any()], [note]))
    return made


def _setting(ours: Any, printed: Any) -> str:
    """Ours in four digits, or as it is written; the paper's in brackets."""
    texts = [f"{one:.4g}" if isinstance(one, int | float) else str(one) for one in (ours, printed)]
    mine, theirs = ("" if text in ("nan", "None") else text for text in texts)
    return f"{mine} ({theirs})".strip() if theirs else mine
