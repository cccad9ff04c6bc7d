"""What one setting does while all others stay: the paper's ablations of α and of the dual learning rate η₂."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudt.config.differences import symbol, value_text
from cudt.noise.base import scale_of
from cudt.report.figures.choose import middle_levels, series
from cudt.report.figures.descent import dress_curves
from cudt.report.figures.style import (
    MOST_BANDS,
    STYLES,
    Figure,
    in_order,
    layer_ticks,
    legend_below,
    line,
    panels,
    plain,
    points,
    save,
    scale_losses,
    scale_setting,
)
from cudt.report.figures.words import counted
from cudt.report.groups import Group

#: These have figures of their own.
_ELSEWHERE = ("noise.gamma_train", "model.layers")
_FEWEST = 3


def ablated(groups: Sequence[Group], kind: str) -> dict[str, list[Group]]:
    """The settings of which constrained groups have at least three values with all else equal, each with its groups."""
    constrained = [group for group in groups if group.objective == "constrained"]
    keys = dict.fromkeys(key for group in constrained for key in group.settings if key not in _ELSEWHERE)
    found = {key: series(constrained, key, kind) for key in keys if _has_values(constrained, key)}
    return {key: mine for key, mine in found.items() if len(mine) >= _FEWEST}


def _has_values(groups: Sequence[Group], key: str) -> bool:
    """Cheaper than looking for a series, and false of nearly all settings."""
    return len({group.settings.get(key) for group in groups}) >= _FEWEST


def ablation(groups: Sequence[Group], key: str, kind: str, stem: Path) -> Figure:
    """The metric against a setting at a low, a middle and a high level of noise, with error bars over seeds.

    The paper's appendix has it for α and η₂ at γ = 0, 1.05 and 1.65.
    """
    levels = middle_levels(groups, kind)
    figure, grid = panels(1, len(levels), 3.2, 2.7)
    values = [group.settings[key] for group in groups]
    for axes, level in zip(grid[0], levels, strict=True):
        rows = [group.curve(kind).set_index("gamma").loc[level] for group in groups]
        mean, lower, upper = ([row[name] for row in rows] for name in ("mean", "lower", "upper"))
        points(axes, values, mean, lower, upper, "constrained", STYLES["constrained"])
        scale_setting(axes, values)
        axes.set(xlabel=_name(key), title=f"{scale_of(kind).symbol} = {level:g}")
    grid[0, 0].set_ylabel(f"test {groups[0].metric}")
    title = f"{groups[0].recipe}: {groups[0].metric} against {_name(key)} under {kind} noise"
    return save(figure, groups[0].recipe, f"{title}, all else equal, {counted(groups, kind)} a value", stem)


def ablation_curves(groups: Sequence[Group], key: str, kind: str, stem: Path) -> Figure:
    """Validation loss by layer, and the metric against γ, a line for each value of a setting: the paper's Figure 4."""
    figure, grid = panels(1, 2, 4.5, 3.1)
    left, right = grid[0]
    for group, style in zip(groups, in_order(len(groups)), strict=True):
        label = plain(f"{symbol(key)} = {value_text(group.settings[key])}")
        rows = group.curve(kind)
        line(
            right,
            rows["gamma"],
            rows["mean"],
            rows["lower"],
            rows["upper"],
            label,
            style,
            crowded=len(groups) > MOST_BANDS,
        )
        _validation_losses(left, group, label, style, len(groups) > MOST_BANDS)
    dress_curves(right, groups, kind)
    layers = [group.layers[group.layers["split"] == "validation"] for group in groups]
    layer_ticks(left, (layer for rows in layers for layer in rows["layer"]))
    scale_losses(left, (loss for rows in layers for loss in rows["loss"]))
    left.set(xlabel="layer", ylabel="validation loss", title="Loss by layer")
    right.set_title(f"Under {kind} noise")
    legend_below(figure)
    title = f"{groups[0].recipe}: loss by layer, and {groups[0].metric} under {kind} noise, by {_name(key)}"
    return save(figure, groups[0].recipe, f"{title}, {counted(groups, kind)} a line", stem)


def _validation_losses(axes: Any, group: Group, label: str, style: dict[str, Any], crowded: bool) -> None:
    rows = group.layers[group.layers["split"] == "validation"]
    if not rows.empty:
        low, high = rows["loss"] - rows["loss_std"], rows["loss"] + rows["loss_std"]
        line(axes, rows["layer"], rows["loss"], low, high, label, style, crowded=crowded)


def _name(key: str) -> str:
    """A letter alone says less than its key."""
    short = symbol(key)
    return short if short == key else f"{short} ({key})"
