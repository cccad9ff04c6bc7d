"""table.csv, curves.csv, layers.csv and ratio_bins.csv: means over the seeds of each group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from cudt.config.levels import scale_of
from cudt.report.compare import labels
from cudt.report.frames import GROUP, Frames
from cudt.report.paired import Quantities
from cudt.utils.text import short_number

#: Rows shown in the terminal; table.csv has all.
_MOST_ROWS = 30


def curves(frames: Frames) -> pd.DataFrame:
    """The metric against the level: mean and standard deviation over the seeds of each group.

    `low` and `high` are the ends of one seed's 95 % interval over test examples or clips, averaged
    over the seeds; `input` is the metric of the noisy input itself, for denoising. Only levels that
    every evaluated seed of a group has: a mean must not change its seeds along a curve.
    """
    keys = [*GROUP, "metric", "perturbation", "gamma", "place"]
    table = frames.points.join(frames.runs[[*GROUP, "metric", "seed"]], on="run")
    return mean_curves(table, [*GROUP, "metric"], keys)


def mean_curves(points: pd.DataFrame, line: list[str], keys: list[str]) -> pd.DataFrame:
    """The mean over the runs of each line, grouped by `keys`, at the levels that all of them have."""
    evaluated = points.groupby([*line, "perturbation"])["seed"].transform("nunique")
    complete = points.groupby(keys)["seed"].transform("nunique") == evaluated
    grouped = points[complete].groupby(keys)
    table = grouped.agg(
        mean=("value", "mean"),
        std=("value", "std"),
        low=("low", "mean"),
        high=("high", "mean"),
        input=("input", "mean"),
        seeds=("seed", "nunique"),
        noise_seeds=("noise_seeds", "min"),
        n=("n", "first"),
    )
    # A level that is NaN for one seed has no mean: without it, the others would look better.
    table["mean"] = table["mean"].where(grouped["value"].count() == grouped.size())
    return table.reset_index()


def layer_losses(frames: Frames) -> pd.DataFrame:
    """Each layer's loss and metric: mean and standard deviation over the seeds of each group."""
    table = frames.layers.join(frames.runs[[*GROUP, "seed"]], on="run")
    keys = [*GROUP, "split", "perturbation", "gamma", "layer"]
    return table.groupby(keys, as_index=False).agg(
        loss=("loss", "mean"),
        loss_std=("loss", "std"),
        metric=("metric", "mean"),
        metric_std=("metric", "std"),
        seeds=("seed", "nunique"),
    )


def ratio_bins(frames: Frames) -> pd.DataFrame:
    """The histogram of per-example layer ratios: shares averaged over the seeds of each group."""
    table = frames.bins.join(frames.runs[[*GROUP, "seed"]], on="run")
    keys = [*GROUP, "perturbation", "gamma", "left", "right"]
    return table.groupby(keys, as_index=False).agg(
        share=("share", "mean"), cumulative=("cumulative", "mean"), seeds=("seed", "nunique")
    )


def summary(frames: Frames, curve: pd.DataFrame) -> pd.DataFrame:
    """table.csv: a row for each group and kind of noise, one row without a curve if there is none."""
    runs, rows = frames.runs, []
    parts = dict(iter(curve.groupby([*GROUP, "perturbation"])))
    named = labels(runs)
    for group, members in runs.groupby("group", sort=False):
        kinds = sorted({kind for noises in members["noises"] for kind in noises}) or [""]
        nothing = curve.iloc[:0]
        rows += [
            {**_row(members, kind, parts.get((*group, kind), nothing)), "label": named[group]}
            for kind in kinds
        ]
    return pd.DataFrame(rows)


def _row(members: pd.DataFrame, kind: str, curve: pd.DataFrame) -> dict[str, Any]:
    first, evaluated = members.iloc[0], not curve.empty
    over = dict.fromkeys(("id_mean", "ood_mean", "mean", "auc"), np.nan)
    if evaluated:
        wanted = Quantities.over(curve["gamma"].tolist(), kind, first["gamma_train"])
        over = wanted.named(curve["mean"].to_numpy())
    reach = f"{curve['gamma'].min():g} to {curve['gamma'].max():g}" if evaluated else ""
    return {
        **{name: first[name] for name in GROUP},
        "seeds": len(members),
        "evaluated": int(curve["seeds"].max()) if evaluated else 0,
        "noise_seeds": int(curve["noise_seeds"].min()) if evaluated else 0,
        "feasible": int(members["feasible"].sum()),
        "monotone": int(members["monotone"].sum()),
        "metric": first["metric"],
        "higher_is_better": first["higher_is_better"],
        "perturbation": kind,
        "gamma_train": first["gamma_train"],
        "levels": len(curve),
        "range": f"{scale_of(kind).symbol} {reach}" if evaluated else "",
        "id_mean": over["id_mean"],
        "ood_mean": over["ood_mean"],
        "grid_mean": over["mean"],
        "input_mean": curve["input"].mean(skipna=False) if evaluated else np.nan,
        "auc": over["auc"],
        "validation_loss": float(members["validation_loss"].mean()),
    }


# ---------------------------------------------------------------- the terminal


def terminal_table(summary: pd.DataFrame) -> Table:
    """The part of table.csv that fits a terminal: AUC for metrics to maximise, else the mean."""
    over = "/".join(
        dict.fromkeys("AUC" if higher else "mean" for higher in summary["higher_is_better"])
    )
    ranges = ", ".join(dict.fromkeys(text for text in summary["range"] if text))
    caption = (
        f"mean {', '.join(dict.fromkeys(summary['metric']))} over levels up to γ_train (ID) and "
        "above (OOD)" + (f"; {over} over {ranges}" if ranges else "")
    )
    if len(summary) > _MOST_ROWS:
        rest = f"the first {_MOST_ROWS} of {len(summary)} rows; table.csv has the rest"
        caption = f"{rest}\n{caption}"
    table = Table(box=None, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    # Names may wrap but stay readable; numbers never wrap.
    words = {"recipe": 10, "objective": 11}
    for heading in (*words, "noise", "feasible", "monotone", "ID", "OOD", over):
        is_word = heading in words
        table.add_column(
            heading,
            justify="left" if is_word or heading == "noise" else "right",
            no_wrap=not is_word,
            min_width=words.get(heading),
            overflow="fold",
        )
    for row in summary[:_MOST_ROWS].to_dict("records"):
        shares = (f"{row[name]} of {row['seeds']}" for name in ("feasible", "monotone"))
        wanted = ("id_mean", "ood_mean", "auc" if row["higher_is_better"] else "grid_mean")
        numbers = ("" if pd.isna(row[name]) else short_number(row[name]) for name in wanted)
        table.add_row(row["recipe"], row["label"], row["perturbation"], *shares, *numbers)
    return table
