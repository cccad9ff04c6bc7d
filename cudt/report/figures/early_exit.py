"""Accuracy against mean depth with early exit, for each objective.

Drawn for each recipe that has early exits (`cudt eval-ood --exits`), under its main kind of noise:
at the training level and at the highest level. Entropy is left out: with two classes it lets the
same examples leave as confidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cudt.evaluation.exit_rules import RuleName
from cudt.noise import scale_of
from cudt.report.early_exit import at_chosen, by_point, has_exits, shown_levels
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind, pair
from cudt.report.figures.panels import layer_ticks, legend_below, line, panels
from cudt.report.figures.words import labels, seeds_range, styles
from cudt.report.groups import Group

_DRAWN: tuple[RuleName, ...] = ("confidence", "patience")


class EarlyExit(FigureType):
    """For each recipe with early exits at a level that all compared groups have."""

    name = "early-exit"
    order = 25

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One, under the main kind of noise."""
        kind = main_kind(groups)
        if kind is not None and shown_levels(has_exits(pair(groups, kind), kind), kind):
            yield FigurePlan(self.name, partial(draw, groups, kind))


def draw(groups: Sequence[Group], kind: str) -> Drawing:
    """A row for each rule and a column for each level; a star is the threshold chosen on validation
    data.
    """
    shown = has_exits(pair(groups, kind), kind)
    levels = shown_levels(shown, kind)
    figure, grid = panels(len(_DRAWN), len(levels), 3.8, 2.6, sharex=True, sharey="col")
    named, drawn = labels(shown, kind), styles(shown)
    for row, rule in zip(grid, _DRAWN, strict=True):
        for axes, (level, note) in zip(row, levels.items(), strict=True):
            for group in shown:
                points, style = by_point(group, kind, level, rule), drawn[group.key]
                mean, std = points["accuracy"], points["accuracy_std"]
                line(
                    axes,
                    points["mean_depth"],
                    mean,
                    mean - std,
                    mean + std,
                    named[group.key],
                    style,
                )
                best, color = at_chosen(group, kind, level, rule), style["color"]
                axes.plot(
                    best["mean_depth"],
                    best["accuracy"],
                    "*",
                    color=color,
                    markersize=13,
                    markeredgecolor="k",
                )
            axes.set_title(f"{rule}, {scale_of(kind).symbol} = {level:g}{note}")
            layer_ticks(axes, range(1, shown[0].n_layers + 1))
        row[0].set_ylabel("test accuracy")
    for axes in grid[-1]:
        axes.set_xlabel("mean number of layers")
    legend_below(figure)
    about = "right end: the full model; star: the threshold chosen on validation data"
    return Drawing(
        figure,
        f"{shown[0].recipe}: early exit under {kind} noise, {seeds_range(shown, kind)} ({about})",
    )


FIGURE = EarlyExit()
