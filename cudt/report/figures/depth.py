"""What more layers do: the figures of one recipe that was trained with several depths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudt.evaluation.curves import area_under_curve
from cudt.report import tables
from cudt.report.figures.choose import best, series, with_curve
from cudt.report.figures.descent import dress_curves
from cudt.report.figures.style import (
    STYLES,
    Figure,
    in_order,
    layer_ticks,
    legend_below,
    line,
    panels,
    points,
    save,
    scale_losses,
)
from cudt.report.figures.words import counted, level_text
from cudt.report.groups import Group

#: Panels beside each other.
_MOST_LEVELS = 5
_FEWEST = 2

#: By γ_train, then by objective: groups in the order of their depth.
Depths = dict[float, dict[str, list[Group]]]


def depths(groups: Sequence[Group], kind: str) -> Depths:
    """Where a recipe has at least two depths at one γ_train: with all else equal, or else the best of each depth."""
    found: Depths = {}
    for level in sorted({group.gamma_train for group in groups}):
        for objective in STYLES:
            mine = [group for group in groups if (group.gamma_train, group.objective) == (level, objective)]
            ordered = series(mine, "model.layers", kind)
            if len(ordered) < _FEWEST:
                ordered = _best_of_each(mine, kind)
            if len(ordered) >= _FEWEST:
                found.setdefault(level, {})[objective] = ordered
    return found


def _best_of_each(groups: Sequence[Group], kind: str) -> list[Group]:
    """By most seeds and lowest validation loss."""
    evaluated = with_curve(groups, kind)
    layers = sorted({group.n_layers for group in evaluated})
    return [best([group for group in evaluated if group.n_layers == count], kind) for count in layers]


def depth_effect(found: Depths, kind: str, stem: Path) -> Figure:
    """One number for a curve against L: the mean metric over the grid, and the area under the curve; by γ_train."""
    levels = list(found)[-_MOST_LEVELS:]
    # A single γ_train has both numbers side by side.
    wide = len(levels) == 1
    figure, grid = panels(1, 2, 3.8, 2.8) if wide else panels(2, len(levels), 3.2, 2.4, sharex=True, sharey="row")
    grid = grid.T if wide else grid
    for column, level in enumerate(levels):
        for objective, groups in found[level].items():
            for axes, number in zip(grid[:, column], (_mean, _area), strict=True):
                value, low, high = zip(*(number(group, kind) for group in groups), strict=True)
                points(axes, [group.n_layers for group in groups], value, low, high, objective, STYLES[objective])
        for axes in grid[:, column] if wide else grid[1:, column]:
            axes.set_xlabel("layers $L$")
        for axes in grid[:, column]:
            layer_ticks(axes, (group.n_layers for groups in found[level].values() for group in groups))
        grid[0, column].set_title(f"γ_train = {level:g}")
    every = [group for level in levels for groups in found[level].values() for group in groups]
    first = every[0]
    grid[0, 0].set_ylabel(f"mean {first.metric}")
    grid[1, 0].set_ylabel("AUC")
    legend_below(figure)
    reach = first.curve(kind)["gamma"]
    over = f"{kind} noise, {reach.min():g} to {reach.max():g}"
    title = f"{first.recipe}: mean {first.metric} and area under the curve over {over}, against depth"
    return save(figure, first.recipe, f"{title}, {counted(every, kind)} a point", stem)


def _mean(group: Group, kind: str) -> tuple[float, float, float]:
    """The mean over the grid; error bars are one standard deviation over seeds, and none for a single one."""
    rows = group.curve(kind)
    return _with_spread(rows["mean"].mean(), [float(values["value"].mean()) for values in _by_seed(group, kind)])


def _area(group: Group, kind: str) -> tuple[float, float, float]:
    rows = group.curve(kind)
    areas = [area_under_curve(values["gamma"].tolist(), values["value"].tolist()) for values in _by_seed(group, kind)]
    return _with_spread(area_under_curve(rows["gamma"].tolist(), rows["mean"].tolist()), areas)


def _by_seed(group: Group, kind: str) -> list[Any]:
    """Each seed's curve at the levels of the group's."""
    levels = group.curve(kind)["gamma"]
    parts = []
    for run in group.runs:
        rows = run.ood[(run.ood["perturbation"] == kind) & (run.ood["metric"] == run.metric)]
        values = rows[rows["gamma"].isin(levels)].groupby("gamma", as_index=False)["value"].mean()
        if len(values):
            parts.append(values)
    return parts


def _with_spread(value: float, of_seeds: Sequence[float]) -> tuple[float, float, float]:
    if len(of_seeds) < 2:
        return value, float("nan"), float("nan")
    spread = tables.deviation(of_seeds)
    return value, value - spread, value + spread


def by_depth(found: Depths, kind: str, stem: Path) -> Figure:
    """Loss by layer for each depth above the curves, a column for each objective, at the highest γ_train there is.

    The paper's loss by layer of L = 3, 5 and 7, and its curves of deeper and deeper models.
    """
    level = max(found, key=lambda level: (len(found[level]), level))
    columns = found[level]
    figure, grid = panels(2, len(columns), 4.2, 2.6, sharey="row", sharex="row")
    losses: list[float] = []
    layers = sorted({group.n_layers for groups in columns.values() for group in groups})
    shades = dict(zip(layers, in_order(len(layers)), strict=True))
    for column, (objective, groups) in enumerate(columns.items()):
        above, below = grid[:, column]
        for group in groups:
            style = {**shades[group.n_layers], "linestyle": STYLES[objective]["linestyle"]}
            losses += _draw_depth(above, below, group, kind, style)
        dress_curves(below, groups, kind)
        above.set(xlabel="layer", title=f"{objective}, {counted(groups, kind)}")
        below.set_ylabel(below.get_ylabel() if column == 0 else "")
    every = [group for groups in columns.values() for group in groups]
    grid[0, 0].set_ylabel("test loss")
    layer_ticks(grid[0, 0], range(1, max(group.n_layers for group in every) + 1))
    scale_losses(grid[0, 0], losses)
    legend_below(figure)
    title = f"{every[0].recipe}: loss by layer at {level_text(kind, every)}, and {every[0].metric} under {kind} noise"
    return save(figure, every[0].recipe, f"{title}, by depth, {counted(every, kind)} a line", stem)


def _draw_depth(above: Any, below: Any, group: Group, kind: str, style: dict[str, Any]) -> list[float]:
    """A depth's losses and its curve; the losses that were drawn."""
    label = f"L = {group.n_layers}"
    rows = group.at(kind)
    low, high = rows["loss"] - rows["loss_std"], rows["loss"] + rows["loss_std"]
    line(above, rows["layer"], rows["loss"], low, high, label, style)
    curve = group.curve(kind)
    line(below, curve["gamma"], curve["mean"], curve["lower"], curve["upper"], label, style)
    return [*rows["loss"]]
