"""Loss by layer, the metric under noise, and how single examples descend: the figures of one recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.noise.base import scale_of
from cudt.report.figures.choose import few, with_curve
from cudt.report.figures.style import (
    MOST_BANDS,
    MOST_LINES,
    Figure,
    finite,
    guide,
    layer_ticks,
    legend_below,
    line,
    panels,
    save,
    scale_losses,
    shade_seen,
)
from cudt.report.figures.words import chosen_text, counted, labels, level_text, styles
from cudt.report.groups import Group

_MOST_REFERENCES = 2
#: Okabe and Ito's orange, for what was asked of a layer.
_ASKED = "#E69F00"


def descent_and_robustness(groups: Sequence[Group], kind: str, stem: Path) -> Figure:
    """Loss by layer beside the metric against γ.

    The paper's Figure 1; of a causal language model, whose metric is the accuracy of tokens, its Llama figure.
    """
    figure, grid = panels(1, 2, 4.5, 3.4)
    shown = few(groups, kind, MOST_LINES)
    draw_layer_losses(grid[0, 0], shown, kind)
    draw_curves(grid[0, 1], shown, kind)
    legend_below(figure)
    first = shown[0]
    what = f"{first.recipe}: loss by layer, and {first.metric} under {kind} noise, {counted(shown, kind)}"
    return save(figure, first.recipe, what + chosen_text(shown, with_curve(groups, kind)), stem)


def draw_layer_losses(axes: Any, groups: Sequence[Group], kind: str) -> None:
    """Each group's test loss by layer at its own level of training, and f_0."""
    named, drawn = labels(groups, kind), styles(groups)
    losses: list[float] = []
    for group in groups:
        rows = group.at(kind)
        if rows.empty:
            continue
        low, high = rows["loss"] - rows["loss_std"], rows["loss"] + rows["loss_std"]
        crowded = len(groups) > MOST_BANDS
        line(axes, rows["layer"], rows["loss"], low, high, named[group.key], drawn[group.key], crowded=crowded)
        losses += [*rows["loss"]]
    references = sorted({group.reference for group in groups})
    # Variants that were asked to descend from many numbers would hide their own lines behind these.
    if len(references) <= _MOST_REFERENCES:
        _mark_references(axes, references)
        losses += references
    axes.set(xlabel="layer", ylabel="test loss", title=f"Loss by layer at {level_text(kind, groups)}")
    layer_ticks(axes, (layer for group in groups for layer in group.at(kind)["layer"]))
    scale_losses(axes, losses)


def _mark_references(axes: Any, references: Sequence[float]) -> None:
    """Named beside the panel, where no line is; of two that nearly meet, once."""
    for place, reference in enumerate(references):
        guide(axes, y=reference)
        if not place or reference > 1.1 * references[place - 1]:
            at = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "color": "0.4"}
            axes.annotate("$f_0$", (1, reference), xycoords=("axes fraction", "data"), annotation_clip=False, **at)


def draw_curves(
    axes: Any, groups: Sequence[Group], kind: str, title: str | None = None, *, counts: bool = True
) -> None:
    """Each group's metric against the level of noise, the levels of training shaded."""
    named, drawn = labels(groups, kind, counts=counts), styles(groups)
    crowded = len(groups) > MOST_BANDS
    for group in groups:
        rows = group.curve(kind)
        ends, label = (rows["lower"], rows["upper"]), named[group.key]
        line(axes, rows["gamma"], rows["mean"], *ends, label, drawn[group.key], crowded=crowded)
    dress_curves(axes, groups, kind)
    axes.set_title(f"Under {kind} noise" if title is None else title)


def dress_curves(axes: Any, groups: Sequence[Group], kind: str) -> None:
    """The axes of curves: their names, and the levels of training."""
    levels = {group.level(kind) for group in groups}
    highest = max(group.curve(kind)["gamma"].max() for group in groups)
    axes.set_xlim(0, 1.03 * max(highest, *levels) or 1)
    # Variants trained at several levels share no in-distribution region.
    if len(levels) == 1 and max(levels):
        shade_seen(axes, max(levels), low=groups[0].higher_is_better)
    axes.set(xlabel=level_name(kind), ylabel=f"test {groups[0].metric}")


def level_name(kind: str) -> str:
    return scale_of(kind).axis


def layer_ratios(groups: Sequence[Group], kind: str, stem: Path) -> Figure:
    """Density and distribution of f_l / f_{l−1} over examples: the paper's PDF and CDF of per-sample ratios."""
    figure, grid = panels(1, 2, 4.5, 3.1)
    left, right = grid[0]
    mine = [group for group in groups if not _bins(group, kind).empty]
    shown = few(mine, kind, MOST_LINES)
    named, drawn = labels(shown, kind), styles(shown)
    for group in shown:
        bins = _bins(group, kind)
        bins = bins[bins["right"] < float("inf")]
        style = {key: drawn[group.key][key] for key in ("color", "linestyle")}
        density = finite(bins["share"]) / (bins["right"] - bins["left"]).to_numpy()
        left.stairs(density, [0, *bins["right"]], label=named[group.key], **style)
        right.plot([0, *bins["right"]], [0, *finite(bins["cumulative"])], label=named[group.key], **style)
    asked = _asked(shown)
    for axes, title in ((left, "Density"), (right, "Share of steps below")):
        guide(axes, x=1)
        for rate in asked:
            guide(axes, x=1 - rate, color=_ASKED, linestyle="-.", label=f"1 − α = {1 - rate:.3g}")
        axes.set(xlabel=r"$f_l\,/\,f_{l-1}$ of an example", title=title, xlim=(0, 2))
    legend_below(figure)
    level = level_text(kind, shown)
    what = f"{shown[0].recipe}: layer ratios per example, {level} of {kind} noise, {counted(shown, kind)}"
    return save(figure, shown[0].recipe, what + chosen_text(shown, mine), stem)


def _bins(group: Group, kind: str) -> pd.DataFrame:
    """The histogram at the level of training; of a model of one layer, or an earlier version's run, none."""
    rows = group.bins
    return rows[(rows["perturbation"] == kind) & (rows["gamma"] == group.level(kind))]


def has_ratios(groups: Sequence[Group], kind: str) -> bool:
    return any(not _bins(group, kind).empty for group in groups if kind in group.kinds)


def _asked(groups: Sequence[Group]) -> set[float]:
    """The rate α that was asked for, where that is one number above 0."""
    rates = {group.settings.get("descent.alpha") for group in groups if group.objective == "constrained"}
    numbers = {rate for rate in rates if isinstance(rate, int | float) and rate > 0}
    return numbers if len(rates) == 1 else set()
