"""The error of every layer's prediction, constrained against ERM: the paper's error rate over
layers.

Drawn for each recipe, under its main kind of noise: clean, at the training level and at the highest
level. The error is 1 − accuracy, or the metric where that is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cudt.config.levels import GAMMA
from cudt.noise import scale_of
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.panels import layer_ticks, legend_below, line, panels
from cudt.report.figures.words import chosen_text, labels, seeds_range, styles
from cudt.report.groups import Group


class ErrorsOverLayers(FigureType):
    """For each recipe with layers evaluated at a level that all compared groups have."""

    name = "errors-over-layers"
    order = 20

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One, under the main kind of noise."""
        kind = main_kind(groups)
        if kind is not None and compared_levels(pair(groups, kind), kind):
            yield FigurePlan(self.name, partial(draw, groups, kind))


def draw(groups: Sequence[Group], kind: str) -> Drawing:
    """A panel for each of up to three noise levels."""
    shown = pair(groups, kind)
    levels = compared_levels(shown, kind)
    figure, grid = panels(1, len(levels), 3.4, 2.8, sharey=True)
    named, drawn = labels(shown, kind), styles(shown)
    for axes, (level, note) in zip(grid[0], levels.items(), strict=True):
        for group in shown:
            rows = group.at(kind, level)
            error = 1 - rows["metric"] if group.higher_is_better else rows["metric"]
            ends = (error - rows["metric_std"], error + rows["metric_std"])
            line(axes, rows["layer"], error, *ends, named[group.key], drawn[group.key])
        axes.set(xlabel="layer", title=f"{scale_of(kind).symbol} = {level:g}{note}")
        layer_ticks(axes, range(1, max(group.n_layers for group in shown) + 1))
    first = shown[0]
    name = f"1 − {first.metric}" if first.higher_is_better else first.metric
    grid[0, 0].set_ylabel(f"test error ({name})" if first.higher_is_better else f"test {name}")
    legend_below(figure)
    title = f"{first.recipe}: {name} over layers under {kind} noise, {seeds_range(shown, kind)}"
    return Drawing(figure, title + chosen_text(shown, with_curve(groups, kind)))


def compared_levels(groups: Sequence[Group], kind: str) -> dict[float, str]:
    """Of the levels that all groups have layers at: the lowest, that of training and the highest,
    each with a note.
    """
    shared = (
        set.intersection(*({*_tested_levels(group, kind)} for group in groups)) if groups else set()
    )
    if not shared:
        return {}
    trained = groups[0].level(kind)
    # Only levels γ can equal γ_train: under noise in texts, which models are not trained on, the
    # level is 0.
    notes = {
        min(shared): "",
        trained: " (γ_train)" if scale_of(kind) == GAMMA else "",
        max(shared): "",
    }
    return {level: notes[level] for level in sorted(notes) if level in shared}


def _tested_levels(group: Group, kind: str) -> list[float]:
    rows = group.layers
    return [*rows[(rows["split"] == "test") & (rows["perturbation"] == kind)]["gamma"]]


FIGURE = ErrorsOverLayers()
