"""Loss by layer next to the metric against the noise level: the paper's Figure 1.

Drawn for each recipe and each kind of noise that it was evaluated under. For a causal language
model, whose metric is the accuracy of tokens, it is the paper's Llama figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import PAPER_LEVELS, noise_kinds, pair, with_curve
from cudt.report.figures.curves import draw_curves
from cudt.report.figures.losses import draw_losses
from cudt.report.figures.panels import guide, layer_ticks, legend_below, panels, scale_losses
from cudt.report.figures.style import MOST_BANDS
from cudt.report.figures.words import chosen_text, labels, level_text, seeds_range, styles
from cudt.report.groups import Group

_MOST_REFERENCES = 2


class DescentAndRobustness(FigureType):
    """For each recipe and kind of noise."""

    name = "descent-and-robustness"
    order = 10

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One for each kind of noise."""
        for position, kind in enumerate(noise_kinds(groups)):
            yield FigurePlan(f"{kind}-{self.name}", partial(draw, groups, kind), position)


def draw(groups: Sequence[Group], kind: str) -> Drawing:
    """Two panels: loss by layer, and the metric against γ."""
    figure, grid = panels(1, 2, 4.5, 3.4)
    shown = pair(groups, kind)
    draw_layer_losses(grid[0, 0], shown, kind)
    draw_curves(grid[0, 1], shown, kind)
    legend_below(figure)
    first = shown[0]
    title = f"{first.recipe}: loss by layer, and {first.metric} under {kind} noise, {seeds_range(shown, kind)}"
    return Drawing(
        figure, title + chosen_text(shown, with_curve(groups, kind), PAPER_LEVELS.get(first.metric))
    )


def draw_layer_losses(axes: Any, groups: Sequence[Group], kind: str) -> None:
    """Draw each group's test loss by layer at the noise level it was trained at, and f_0."""
    named, drawn = labels(groups, kind), styles(groups)
    losses: list[float] = []
    for group in groups:
        rows = group.at(kind)
        draw_losses(
            axes, rows, named[group.key], drawn[group.key], crowded=len(groups) > MOST_BANDS
        )
        losses += [*rows["loss"]]
    references = sorted({group.reference for group in groups})
    # The lines of many references would hide the losses.
    if len(references) <= _MOST_REFERENCES:
        _mark_references(axes, references)
        losses += references
    axes.set(
        xlabel="layer", ylabel="test loss", title=f"Loss by layer at {level_text(kind, groups)}"
    )
    layer_ticks(axes, (layer for group in groups for layer in group.at(kind)["layer"]))
    scale_losses(axes, losses)


def _mark_references(axes: Any, references: Sequence[float]) -> None:
    """Draw f_0, with its name to the right of the panel; of two that nearly coincide, one name."""
    for index, reference in enumerate(references):
        guide(axes, y=reference)
        if not index or reference > 1.1 * references[index - 1]:
            at = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "color": "0.4"}
            axes.annotate(
                "$f_0$",
                (1, reference),
                xycoords=("axes fraction", "data"),
                annotation_clip=False,
                **at,
            )


FIGURE = DescentAndRobustness()
