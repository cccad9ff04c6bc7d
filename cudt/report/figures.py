"""Figures in one style: colours that colour-blind readers tell apart, solid for constrained, dashed for ERM."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from cudt.report import tables
from cudt.report.collect import ReadRun
from cudt.runs import write_atomically

#: Okabe and Ito's palette.
STYLES: dict[str, dict[str, Any]] = {
    "constrained": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    "erm": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "supervised": {"color": "#009E73", "linestyle": ":", "marker": "^"},
}

#: For several variants of one objective.
MARKERS = "os^Dvxp*"


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
        for kind in sorted({kind for run in mine for kind in run.ood["perturbation"].unique()}):
            made.append(descent_and_robustness(recipe, kind, mine, out))
    return made


def descent_and_robustness(recipe: str, kind: str, runs: Sequence[ReadRun], out: Path) -> Figure:
    """Loss by layer beside the metric against γ (the paper's Figure 1)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)
    _draw_layer_losses(left, kind, runs)
    _draw_curves(right, kind, runs)
    right.legend(frameon=False, fontsize=9)
    title = f"{recipe}: loss by layer, and {runs[0].metric} under {kind} noise"
    return _save(figure, recipe, title, out / f"{_file_name(recipe)}-{kind}-descent-and-robustness")


def _draw_layer_losses(axes: Any, kind: str, runs: Sequence[ReadRun]) -> None:
    table = tables.layer_losses(runs)
    # A variant may have another training level; each is drawn at its own.
    own = {run.info["variant"]: run.info["gamma_train"] for run in runs}
    at_own = table["gamma"] == table["variant"].map(own)
    table = table[(table["split"] == "test") & (table["perturbation"] == kind) & at_own]
    for label, style, rows in _groups(table, runs):
        _line(axes, rows["layer"], rows["loss"], rows["loss_std"], label, style)
    for reference in {run.info["reference"] for run in runs}:
        axes.axhline(reference, color="0.5", linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate("$f_0$", (1, reference), (-14, 3), ("axes fraction", "data"), "offset points", color="0.4")
    levels = r"$\gamma_{train}$ = " + ", ".join(f"{level:g}" for level in sorted(set(own.values())))
    axes.set(xlabel="layer", ylabel="test loss", title=f"Loss by layer at {levels}")
    axes.set_xticks(sorted(table["layer"].unique()))
    axes.set_ylim(bottom=0)


def _draw_curves(axes: Any, kind: str, runs: Sequence[ReadRun]) -> None:
    table = tables.curves(runs)
    for label, style, rows in _groups(table[table["perturbation"] == kind], runs):
        _line(axes, rows["gamma"], rows["mean"], rows["std"], label, style)
    gamma_train, *others = {run.info["gamma_train"] for run in runs}
    axes.set_xlim(0, 1.03 * max(table["gamma"].max(), gamma_train) or 1)
    # Variants trained at several levels share no in-distribution region.
    if gamma_train and not others:
        axes.axvspan(0, gamma_train, color="0.92", zorder=0)
        axes.text(gamma_train / 2, 0.02, "ID", transform=axes.get_xaxis_transform(), ha="center", color="0.4")
    axes.set(xlabel=r"perturbation level $\gamma$", ylabel=f"test {runs[0].metric}", title=f"Under {kind} noise")


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


def _line(axes: Any, x: pd.Series, y: pd.Series, std: pd.Series, label: str, style: dict[str, Any]) -> None:
    axes.plot(x, y, label=label, markersize=4, linewidth=1.6, **style)
    if std.notna().any():
        axes.fill_between(x, y - std.fillna(0), y + std.fillna(0), color=style["color"], alpha=0.15, linewidth=0)


def _save(figure: Any, recipe: str, title: str, stem: Path) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    paths = {kind: stem.parent / f"{stem.name}.{kind}" for kind in ("png", "pdf")}
    for kind, path in paths.items():
        write_atomically(path, partial(figure.savefig, format=kind, dpi=150))
    plt.close(figure)
    return Figure(recipe, title, paths["png"], paths["pdf"])


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text)
