"""Loss by layer and the metric against the noise level, a line for each depth and a column for each
objective.

The paper's loss by layer for L = 3, 5 and 7, and its curves of deeper and deeper models. Drawn for
each recipe that was trained with more than one depth: at γ_train = 0 as in the paper, else at the
highest that most objectives have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cudt.report import objectives
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind
from cudt.report.figures.curves import draw_curve, dress_curves
from cudt.report.figures.depths import Depths, depths
from cudt.report.figures.losses import draw_losses
from cudt.report.figures.panels import layer_ticks, legend_below, panels, scale_losses
from cudt.report.figures.style import ordered_styles
from cudt.report.figures.words import level_text, seeds_range
from cudt.report.groups import Group

#: γ_train of the paper's figures of depth.
_PAPER_LEVEL = 0.0


class ByDepth(FigureType):
    """For each recipe with several depths."""

    name = "by-depth"
    order = 60

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One, under the main kind of noise."""
        kind = main_kind(groups)
        if kind is not None and (found := depths(groups, kind)):
            yield FigurePlan(self.name, partial(draw, found, kind))


def draw(found: Depths, kind: str) -> Drawing:
    """Losses above, curves below."""
    level = max(found, key=lambda level: (len(found[level]), level == _PAPER_LEVEL, level))
    columns = found[level]
    figure, grid = panels(2, len(columns), 4.2, 2.6, sharey="row", sharex="row")
    every = [group for groups in columns.values() for group in groups]
    layers = sorted({group.n_layers for group in every})
    shades = dict(zip(layers, ordered_styles(len(layers)), strict=True))
    called = objectives.labels(columns)
    for column, (objective, groups) in enumerate(columns.items()):
        above, below = grid[:, column]
        for group in groups:
            label = f"L = {group.n_layers}"
            style = {
                **shades[group.n_layers],
                "linestyle": objectives.style(objective)["linestyle"],
            }
            draw_losses(above, group.at(kind), label, style)
            draw_curve(below, group, kind, label, style)
        dress_curves(below, groups, kind)
        above.set(xlabel="layer", title=f"{called[objective]}, {seeds_range(groups, kind)}")
        below.set_ylabel(below.get_ylabel() if column == 0 else "")
    grid[0, 0].set_ylabel("test loss")
    layer_ticks(grid[0, 0], range(1, max(layers) + 1))
    scale_losses(grid[0, 0], (loss for group in every for loss in group.at(kind)["loss"]))
    legend_below(figure)
    title = f"{every[0].recipe}: loss by layer at {level_text(kind, every)}, and {every[0].metric} under {kind} noise"
    note = (
        ""
        if level == _PAPER_LEVEL
        else f" (γ_train = {level:g}; the paper's figure has {_PAPER_LEVEL:g})"
    )
    return Drawing(figure, f"{title}, by depth, {seeds_range(every, kind)} per line{note}")


FIGURE = ByDepth()
