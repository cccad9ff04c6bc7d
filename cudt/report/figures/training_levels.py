"""The metric against the noise level for each γ_train, constrained against ERM: the paper's curves per training level.

Drawn for each recipe of which one depth was trained at more than one γ_train.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.curves import draw_curves, panel_title
from cudt.report.figures.panels import legend_below, share_height, wrapped_panels
from cudt.report.figures.words import chosen_text, seeds_range
from cudt.report.groups import Group

#: Panels that fit on a page.
_MOST_PANELS = 9


class TrainingLevels(FigureType):
    """For each recipe with several γ_train."""

    name = "training-levels"
    order = 40

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One, under the main kind of noise."""
        kind = main_kind(groups)
        if kind is not None and len(levels_of_training(_of_one_depth(groups, kind), kind)) > 1:
            yield FigurePlan(self.name, partial(draw, groups, kind))


def draw(groups: Sequence[Group], kind: str) -> Drawing:
    """A panel for each γ_train, with one group of each objective."""
    groups = _of_one_depth(groups, kind)
    levels = levels_of_training(groups, kind)
    shown = {level: pair([group for group in groups if group.gamma_train == level], kind) for level in levels}
    figure, axes = wrapped_panels(len(levels), 3, height=2.7)
    for panel, level in zip(axes, levels, strict=True):
        draw_curves(panel, shown[level], kind, panel_title("", shown[level], kind), counts=False)
        panel.title.set_fontsize(9)
    share_height(axes)
    legend_below(figure)
    all_shown = [group for level in levels for group in shown[level]]
    title = f"{groups[0].recipe}: {groups[0].metric} under {kind} noise by γ_train, {seeds_range(all_shown, kind)}"
    return Drawing(figure, title + chosen_text(all_shown, with_curve(groups, kind)))


def _of_one_depth(groups: Sequence[Group], kind: str) -> list[Group]:
    """The groups of the depth trained at most levels, the deepest of several: panels differ in γ_train alone."""
    by_depth: dict[int, list[Group]] = {}
    for group in groups:
        by_depth.setdefault(group.n_layers, []).append(group)
    return max(
        (by_depth[depth] for depth in sorted(by_depth, reverse=True)),
        key=lambda mine: len({group.gamma_train for group in with_curve(mine, kind)}),
    )


def levels_of_training(groups: Sequence[Group], kind: str) -> list[float]:
    """Every γ_train; of more than fit on a page, nine spread from the lowest to the highest."""
    levels = sorted({group.gamma_train for group in with_curve(groups, kind)})
    if len(levels) <= _MOST_PANELS:
        return levels
    return [levels[round(index * (len(levels) - 1) / (_MOST_PANELS - 1))] for index in range(_MOST_PANELS)]


FIGURE = TrainingLevels()
