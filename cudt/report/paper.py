"""The paper's tables with our numbers beside the printed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.report import compare
from cudt.report.compare import BASELINE, CONSTRAINED, OF_ANY_DEPTH, SIDES
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


def tables(differences: Differences) -> tuple[list[TextTable], dict[str, pd.DataFrame]]:
    """The paper's tables that have runs, as texts; and in long form, by stem."""
    runs = differences.frames.runs
    published = compare.without_ablations(runs)
    published = published[published["is_published"] & published["objective"].isin(SIDES)]
    shown, long = [], {}
    for kind in PAPER_TABLES:
        rows = results(kind, published, differences)
        if rows["ours"].notna().any():
            shown.append(result_table(kind, rows))
            long[kind.stem] = rows
    settings = hyper_parameters(published)
    if len(settings):
        shown.append(settings_table(settings))
        long["dual"] = settings
    return shown, long


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
    members: dict[Any, list[int]] = {}
    for run in each(runs[runs["metric"] == kind.metric]):
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
    between = one.numbers[kind.quantity]
    ours = between[name]
    # Only over the paper's levels may ours be compared with the paper's.
    is_alike = len(levels) == len(kind.levels) and np.allclose(levels, kind.levels)
    return {
        "objective": name,
        "ours": ours,
        "std": between[f"{name}_std"],
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
    made: dict[Any, dict[str, str]] = {}
    for row in each(rows):
        key = row.model, row.layers, row.gamma_train
        first = {"model": row.model, "L": f"{row.layers}", "γ_train": f"{row.gamma_train:g}"}
        column = f"{row.dataset} {_HEADINGS[row.objective]}"
        made.setdefault(key, first)[column] = _entry(row)
    filled = rows[rows["seeds"] > 0]
    notes = [
        f"Our numbers over {' or '.join(filled['levels'].unique())}; in brackets the paper's number, "
        "the difference to it, and the number of seeds. Best of n: selected on validation data. "
        "Bold: better according to the 95 % interval of the paired difference, where both sides "
        f"have as many runs. No run yet for {len(rows) - len(filled)} of {len(rows)} numbers."
    ]
    for row in each(filled[filled["infeasible"] != ""]):
        place = f"{row.model} on {row.dataset}, L = {row.layers}, γ_train = {row.gamma_train:g}"
        notes.append(f"†: {place}: {row.infeasible}.")
    return TextTable(kind.stem, kind.title, pd.DataFrame([*made.values()]).fillna(""), notes)


def _entry(row: Any) -> str:
    """`**1.680**† (1.719, -0.039; 1 seed)`."""
    if not row.seeds:
        return f"({row.paper:.3f})"
    ours = f"**{row.ours:.3f}**" if row.is_better else f"{row.ours:.3f}"
    ours += "†" if row.infeasible else ""
    apart = "at other levels" if np.isnan(row.difference) else f"{row.difference:+.3f}"
    seeds = f"{row.seeds} seed{'s' if row.seeds > 1 else ''}"
    how = f"best of {row.best_of}" if row.best_of else seeds
    return f"{ours} ({row.paper:.3f}, {apart}; {how})"


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
_FILES = ("dual_video.csv", "dual_language.csv", "dual_llama.csv")


def hyper_parameters(runs: pd.DataFrame) -> pd.DataFrame:
    """The settings of the best constrained run of each cell next to the paper's."""
    rows = []
    for printed in (row for f in _FILES for row in pd.read_csv(folder() / f).to_dict("records")):
        # Losses are comparable only within a cell, so the best run is selected within each.
        like = runs.loc[[_belongs_to(run, printed) for run in each(runs)]]
        for _, mine in like.groupby("cell"):
            side = compare.choose(mine, NOISE).get(CONSTRAINED)
            if side and side.runs:
                run, ours = runs.loc[side.runs[0]], printed_settings(printed)
                facts = {**run["published"], "runs": side.how, "run": run["path"]}
                used = _settings(run)
                for key in _SETTINGS:
                    facts |= {key: used.get(key), f"{key}_paper": ours.get(key)}
                rows.append(facts)
    return pd.DataFrame(rows)


def _belongs_to(run: Any, row: Mapping[Any, Any]) -> bool:
    """Whether a run has the model, data set and γ_train that the paper prints settings for."""
    if run.published["model"] != row["model"]:
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


def _settings(run: Any) -> dict[str, Any]:
    """The same settings of a run."""
    lora, descent = run["model"].get("lora") or {}, run["descent"]
    return {
        **{"layers": run["n_layers"], "gamma_train": run["gamma_train"], "f_0": run["reference"]},
        **{"alpha": descent["alpha"], "beta": descent["beta"]},
        "eta_2": descent["dual"]["learning_rate"],
        **{f"lora_{key}": lora[key] for key in ("rank", "alpha", "dropout") if key in lora},
    }


def settings_table(settings: pd.DataFrame) -> TextTable:
    """`0.1 (0.226)` is our setting with the paper's in brackets."""
    rows = [
        {
            **{"model": row["model"], "data set": row["dataset"]},
            **{name: _setting(row[key], row[f"{key}_paper"]) for key, name in _SETTINGS.items()},
            "runs": row["runs"],
        }
        for row in settings.to_dict("records")
    ]
    note = (
        "α is the rate of the equations; the paper's tables print 1 − α. In brackets the paper's "
        "settings, f_0 and β in cudt's unit of loss."
    )
    frame, title = pd.DataFrame(rows), "Dual hyper-parameters of the best constrained runs"
    return TextTable("dual", title, frame.loc[:, (frame != "").any()], [note])


def _setting(ours: Any, printed: Any) -> str:
    """Ours in four digits, or as it is written; the paper's in brackets."""
    texts = [f"{one:.4g}" if isinstance(one, int | float) else str(one) for one in (ours, printed)]
    mine, theirs = ("" if text in ("nan", "None") else text for text in texts)
    return f"{mine} ({theirs})".strip() if theirs else mine
