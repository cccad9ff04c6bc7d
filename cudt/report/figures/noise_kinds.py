"""The metric under each kind of noise: the paper's figures of uniform and discrete noise, next to
Gaussian.

Drawn for each recipe that was evaluated under more than one kind of noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cudt.report.figures import choose
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import pair, with_curve
from cudt.report.figures.curves import draw_curves
from cudt.report.figures.panels import legend_below, share_height, wrapped_panels
from cudt.report.figures.words import chosen_text, seeds_range
from cudt.report.groups import Group


class NoiseKinds(FigureType):
    """For each recipe with several kinds of noise."""

    name = "noise-kinds"
    order = 30

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One with all kinds of noise."""
        kinds = choose.noise_kinds(groups)
        if len(kinds) > 1:
            yield FigurePlan(self.name, partial(draw, groups, kinds))


def draw(groups: Sequence[Group], kinds: Sequence[str]) -> Drawing:
    """A panel for each kind of noise."""
    figure, axes = wrapped_panels(len(kinds), 3)
    shown = {kind: pair(groups, kind) for kind in kinds}
    for panel, kind in zip(axes, kinds, strict=True):
        draw_curves(panel, shown[kind], kind, counts=False)
    share_height(axes)
    legend_below(figure)
    recipe, metric, first = groups[0].recipe, groups[0].metric, kinds[0]
    chosen = chosen_text(shown[first], with_curve(groups, first))
    seeds = seeds_range(shown[first], first)
    return Drawing(figure, f"{recipe}: {metric} under {', '.join(kinds)} noise, {seeds}{chosen}")


FIGURE = NoiseKinds()
