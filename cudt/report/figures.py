"""Figures in one style: colours that colour-blind readers tell apart, solid for constrained, dashed for ERM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from cudt.files import file_name, write_atomically
from cudt.levels import PROBABILITY, scale_of, training_level
from cudt.report import tables
from cudt.report.collect import ReadRun

#: Okabe and Ito's palette.
STYLES: dict[str, dict[str, Any]] = {
    "constrained": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    "erm": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "supervised": {"color": "#009E73", "linestyle": ":", "marker": "^"},
}

#: For several variants of one objective.
MARKERS = "os^Dvxp*"


#: Losses that differ more are drawn on a logarithmic axis.
_MANY_TIMES = 20


@dataclass(frozen=True)
class Figure:
    """A figure on disk; the PNG goes into the page, the PDF into papers."""

    recipe: str
    title: str
    png: Path
    pdf: Path


def draw_all(runs: Sequence[ReadRun], out: Path) -> list[Figure]:
    """Every figure that the runs have data for."""
    made = []
    for recipe in sorted({run.recipe for run in runs}):
        mine = [run for run in runs if run.recipe == recipe]
        bins = tables.ratio_bins(mine)
        for kind in sorted(tables.curves(mine)["perturbation"].unique()):
            made.append(descent_and_robustness(recipe, kind, mine, out))
            # A model of one layer has no ratios, nor has a run that an earlier version evaluated.
            table = _at_own_level(bins, kind, mine)
            if not table.empty:
                made.append(layer_ratios(recipe, kind, mine, table, out))
    return made


def descent_and_robustness(recipe: str, kind: str, runs: Sequence[ReadRun], out: Path) -> Figure:
    """Loss by layer beside the metric against γ (the paper's Figure 1)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)
    _draw_layer_losses(left, kind, runs)
    _draw_curves(right, kind, runs)
    right.legend(frameon=False, fontsize=9)
    title = f"{recipe}: loss by layer, and {runs[0].metric} under {kind} noise"
    return save(figure, recipe, title, out / f"{file_name(recipe)}-{kind}-descent-and-robustness")


def layer_ratios(recipe: str, kind: str, runs: Sequence[ReadRun], table: pd.DataFrame, out: Path) -> Figure:
    """Density and distribution of f_l / f_{l−1} over examples (the paper's per-sample figure); `table` has the bins."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), constrained_layout=True)
    for label, style, rows in _groups(table, runs):
        bins = rows[rows["right"] < float("inf")]
        line = {key: style[key] for key in ("color", "linestyle")}
        left.stairs(bins["share"] / (bins["right"] - bins["left"]), [0, *bins["right"]], label=label, **line)
        right.plot([0, *bins["right"]], [0, *bins["cumulative"]], label=label, **line)
    for axes, title in ((left, "Density"), (right, "Share of steps below")):
        axes.axvline(1, color="0.5", linewidth=1, linestyle=(0, (1, 2)))
        axes.set(xlabel=r"$f_l\,/\,f_{l-1}$ of an example", title=title, xlim=(0, 2))
    left.legend(frameon=False, fontsize=9)
    title = f"{recipe}: layer ratios per example, {_level_text(kind, runs)} of {kind} noise"
    return save(figure, recipe, title, out / f"{file_name(recipe)}-{kind}-layer-ratios")


def _at_own_level(table: pd.DataFrame, kind: str, runs: Sequence[ReadRun]) -> pd.DataFrame:
    """The rows at the level of training; a variant may have another one, and each is drawn at its own."""
    own = {run.info["variant"]: training_level(kind, run.info["gamma_train"]) for run in runs}
    return table[(table["perturbation"] == kind) & (table["gamma"] == table["variant"].map(own))]


def _level_text(kind: str, runs: Sequence[ReadRun]) -> str:
    levels = sorted({training_level(kind, run.info["gamma_train"]) for run in runs})
    return f"{scale_of(kind).symbol} = " + ", ".join(f"{level:g}" for level in levels)


def _draw_layer_losses(axes: Any, kind: str, runs: Sequence[ReadRun]) -> None:
    table = _at_own_level(tables.layer_losses(runs), kind, runs)
    table = table[table["split"] == "test"]
    for label, style, rows in _groups(table, runs):
        std = rows["loss_std"]
        _line(axes, rows["layer"], rows["loss"], rows["loss"] - std, rows["loss"] + std, label, style)
    for reference in {run.info["reference"] for run in runs}:
        axes.axhline(reference, color="0.5", linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate("$f_0$", (1, reference), (-14, 3), ("axes fraction", "data"), "offset points", color="0.4")
    axes.set(xlabel="layer", ylabel="test loss", title=f"Loss by layer at {_level_text(kind, runs)}")
    layers = sorted(table["layer"].unique())
    # More than a dozen numbers would run into each other; the last layer has one in any case.
    axes.set_xticks(layers[:: (-len(layers)) // 12][::-1])
    levels = [*table["loss"], *(run.info["reference"] for run in runs)]
    if max(levels) > _MANY_TIMES * min(levels) > 0:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * max(levels))


def _draw_curves(axes: Any, kind: str, runs: Sequence[ReadRun]) -> None:
    table = tables.curves(runs)
    table = table[table["perturbation"] == kind]
    for label, style, rows in _groups(table, runs):
        # Over seeds where there are several, else over test examples.
        low = rows["low"].where(rows["std"].isna(), rows["mean"] - rows["std"])
        high = rows["high"].where(rows["std"].isna(), rows["mean"] + rows["std"])
        _line(axes, rows["gamma"], rows["mean"], low, high, label, style)
    seen, *others = {training_level(kind, run.info["gamma_train"]) for run in runs}
    axes.set_xlim(0, 1.03 * max(table["gamma"].max(), seen) or 1)
    # Variants trained at several levels share no in-distribution region.
    if seen and not others:
        axes.axvspan(0, seen, color="0.92", zorder=0)
        # Where the curve is not: errors begin low.
        height = 0.02 if runs[0].info["metric"]["higher_is_better"] else 0.93
        axes.text(seen / 2, height, "ID", transform=axes.get_xaxis_transform(), ha="center", color="0.4")
    level = "probability $p$" if scale_of(kind) is PROBABILITY else r"perturbation level $\gamma$"
    axes.set(xlabel=level, ylabel=f"test {runs[0].metric}", title=f"Under {kind} noise")


def _groups(table: pd.DataFrame, runs: Sequence[ReadRun]) -> list[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Label, style and rows of each group; a variant is named only where an objective has several."""
    made = []
    for group in dict.fromkeys(run.group for run in runs):
        _, objective, variant = group
        rows = table[(table["objective"] == objective) & (table["variant"] == variant)]
        if rows.empty:
            continue
        seeds = rows["seeds"].max()
        variants = list(dict.fromkeys(run.group for run in runs if run.objective == objective))
        style = dict(STYLES[objective])
        if len(variants) > 1:
            style["marker"] = MARKERS[variants.index(group) % len(MARKERS)]
        label = objective + (f" {variant}" if len(variants) > 1 else "") + f" ({seeds} seed{'s' if seeds > 1 else ''})"
        made.append((label, style, rows))
    return made


def _line(axes: Any, x: Any, y: Any, low: Any, high: Any, label: str, style: dict[str, Any]) -> None:
    axes.plot(x, y, label=label, markersize=4, linewidth=1.6, **style)
    if low.notna().any():
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def save(figure: Any, recipe: str, title: str, stem: Path, *, grid: bool = True) -> Figure:
    """Write a figure in both formats, in the house's style."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        if grid:
            axes.grid(alpha=0.25, linewidth=0.6)
    paths = {kind: stem.parent / f"{stem.name}.{kind}" for kind in ("png", "pdf")}
    for kind, path in paths.items():
        write_atomically(path, partial(figure.savefig, format=kind, dpi=150))
    plt.close(figure)
    return Figure(recipe, title, paths["png"], paths["pdf"])
