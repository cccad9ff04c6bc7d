"""What is left of descent under noise: constraints kept, the best layer, and what the last one
loses against it.

Drawn for each recipe, under its main kind of noise, from the test losses of every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from cudt.noise import scale_of
from cudt.report.carry_over import best_layers, by_level, has_descent, kept_by_level
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.panels import legend_below, line, panels, scale_losses, shade_seen
from cudt.report.figures.words import chosen_text, labels, seeds_range, styles
from cudt.report.groups import Group


class DescentUnderNoise(FigureType):
    """For each recipe whose runs have the constraints of every noise level."""

    name = "descent-under-noise"
    order = 15

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One, under the main kind of noise."""
        kind = main_kind(groups)
        if kind is not None and has_descent(pair(groups, kind), kind):
            yield FigurePlan(self.name, partial(draw, groups, kind))


def draw(groups: Sequence[Group], kind: str) -> Drawing:
    """Four panels over the noise level, with one group of each objective."""
    shown = has_descent(pair(groups, kind), kind)
    figure, (row,) = panels(1, 4, 2.9, 2.9)
    kept, best, lowest, gap = row
    _draw_number(kept, shown, kind, lambda group: kept_by_level(group, shown, kind))
    _draw_best_layers(best, shown, kind)
    _draw_number(lowest, shown, kind, lambda group: by_level(group.runs, kind, "best_loss"))
    scale_losses(
        lowest,
        [value for group in shown for value in by_level(group.runs, kind, "best_loss")["mean"]],
    )
    _draw_number(gap, shown, kind, lambda group: by_level(group.runs, kind, "gap"))
    layers = shown[0].n_layers
    kept.set(
        title="Constraints kept",
        ylabel=f"of {layers}, on test data",
        ylim=(-0.04 * layers, 1.04 * layers),
    )
    best.set(
        title="Layer with the lowest loss",
        ylabel="median (band: all seeds)",
        ylim=(0.9, layers + 0.1),
    )
    lowest.set(title="Its loss", ylabel=r"$\min_k\, f_k$")
    gap.set(title="Last layer against the best", ylabel=r"$f_L - \min_k\, f_k$")
    for axes in (kept, best):
        axes.locator_params(axis="y", integer=True)
    for axes in row:
        axes.set(xlabel=scale_of(kind).axis, xlim=(0, None))
        if shown[0].level(kind):
            shade_seen(axes, shown[0].level(kind), low=axes in (kept, best))
    legend_below(figure)
    title = f"{shown[0].recipe}: constraints and best layer under {kind} noise, {seeds_range(shown, kind)}"
    return Drawing(figure, title + chosen_text(shown, with_curve(groups, kind)))


def _draw_number(
    axes: Any, groups: Sequence[Group], kind: str, numbers: Callable[[Group], pd.DataFrame]
) -> None:
    """Draw `mean` of each group's numbers against the noise level, with one standard deviation over
    seeds.
    """
    named, drawn = labels(groups, kind), styles(groups)
    for group in groups:
        rows = numbers(group)
        ends = (rows["mean"] - rows["std"], rows["mean"] + rows["std"])
        line(axes, rows.index, rows["mean"], *ends, named[group.key], drawn[group.key])


def _draw_best_layers(axes: Any, groups: Sequence[Group], kind: str) -> None:
    """Draw the median over seeds, since there is no layer 3.33, with the range of all seeds."""
    named, drawn = labels(groups, kind), styles(groups)
    for group in groups:
        rows = best_layers(group.runs, kind)
        low, high = rows["least"], rows["most"]
        if len(group.runs) == 1:
            low = high = rows["median"] * np.nan
        line(axes, rows.index, rows["median"], low, high, named[group.key], drawn[group.key])


FIGURE = DescentUnderNoise()
