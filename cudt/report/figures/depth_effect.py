"""One number per curve against the depth L: the mean metric over the noise levels, and the area
under the curve.

Drawn for each recipe that was trained with more than one depth; a column for each γ_train.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from cudt.evaluation.curves import area_under_curve
from cudt.report import objectives, tables
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind
from cudt.report.figures.depths import Depths, depths
from cudt.report.figures.panels import layer_ticks, legend_below, panels, points
from cudt.report.figures.words import seeds_range
from cudt.report.groups import Group

#: Columns that fit next to each other.
_MOST_LEVELS = 5


class DepthEffect(FigureType):
    """For each recipe with several depths."""

    name = "depth-effect"
    order = 50

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One, under the main kind of noise."""
        kind = main_kind(groups)
        if kind is not None and (found := depths(groups, kind)):
            yield FigurePlan(self.name, partial(draw, found, kind))


def draw(found: Depths, kind: str) -> Drawing:
    """Mean and area, one above the other for each γ_train; side by side where there is a single
    γ_train.
    """
    levels = list(found)[-_MOST_LEVELS:]
    wide = len(levels) == 1
    figure, grid = (
        panels(1, 2, 3.8, 2.8)
        if wide
        else panels(2, len(levels), 3.2, 2.4, sharex=True, sharey="row")
    )
    grid = grid.T if wide else grid
    for column, level in enumerate(levels):
        _draw_level(grid[:, column], found[level], kind)
        for axes in grid[:, column] if wide else grid[1:, column]:
            axes.set_xlabel("layers $L$")
        grid[0, column].set_title(f"γ_train = {level:g}")
    every = [group for level in levels for groups in found[level].values() for group in groups]
    first = every[0]
    grid[0, 0].set_ylabel(f"mean {first.metric}")
    grid[1, 0].set_ylabel("AUC")
    legend_below(figure)
    reach = first.curve(kind)["gamma"]
    over = f"{kind} noise, {reach.min():g} to {reach.max():g}"
    title = (
        f"{first.recipe}: mean {first.metric} and area under the curve over {over}, against depth"
    )
    return Drawing(figure, f"{title}, {seeds_range(every, kind)} per point")


def _draw_level(column: Sequence[Any], by_objective: dict[str, list[Group]], kind: str) -> None:
    """Draw the means and the areas of one γ_train, a line for each objective."""
    called = objectives.labels(by_objective)
    for objective, groups in by_objective.items():
        layers, style = [group.n_layers for group in groups], objectives.style(objective)
        for axes, number in zip(column, (_mean, _area), strict=True):
            value, low, high = zip(*(number(group, kind) for group in groups), strict=True)
            points(axes, layers, value, low, high, called[objective], style)
    for axes in column:
        layer_ticks(axes, (group.n_layers for groups in by_objective.values() for group in groups))


def _mean(group: Group, kind: str) -> tuple[float, float, float]:
    """The mean over the noise levels, and the ends of its error bar."""
    rows = group.curve(kind)
    return _with_spread(
        rows["mean"].mean(), [float(values["value"].mean()) for values in _by_seed(group, kind)]
    )


def _area(group: Group, kind: str) -> tuple[float, float, float]:
    """The area under the curve, and the ends of its error bar."""
    rows = group.curve(kind)
    areas = [
        area_under_curve(values["gamma"].tolist(), values["value"].tolist())
        for values in _by_seed(group, kind)
    ]
    return _with_spread(area_under_curve(rows["gamma"].tolist(), rows["mean"].tolist()), areas)


def _by_seed(group: Group, kind: str) -> list[Any]:
    """Each seed's curve, at the noise levels of the group's curve."""
    levels = group.curve(kind)["gamma"]
    parts = []
    for run in group.runs:
        rows = run.ood[(run.ood["perturbation"] == kind) & (run.ood["metric"] == run.metric)]
        values = rows[rows["gamma"].isin(levels)].groupby("gamma", as_index=False)["value"].mean()
        if len(values):
            parts.append(values)
    return parts


def _with_spread(value: float, of_seeds: Sequence[float]) -> tuple[float, float, float]:
    """The value ± one standard deviation over seeds; NaN for the ends where there is a single
    seed.
    """
    if len(of_seeds) < 2:
        return value, float("nan"), float("nan")
    spread = tables.deviation(of_seeds)
    return value, value - spread, value + spread


FIGURE = DepthEffect()
