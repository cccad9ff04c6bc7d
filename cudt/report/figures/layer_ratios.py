"""Density and distribution of f_l / f_{l−1} over examples: the paper's PDF and CDF of the ratios
per sample.

Drawn for each recipe and each kind of noise for which a run has ratios.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd

from cudt.report import objectives
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import noise_kinds, pair
from cudt.report.figures.panels import finite, guide, legend_below, panels
from cudt.report.figures.style import ASKED_COLOR
from cudt.report.figures.words import chosen_text, labels, level_text, seeds_range, styles
from cudt.report.groups import Group


class LayerRatios(FigureType):
    """For each recipe and kind of noise with ratios."""

    name = "layer-ratios"
    order = 10

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One for each kind of noise, where a run has ratios."""
        for position, kind in enumerate(noise_kinds(groups)):
            if any(not _bins(group, kind).empty for group in groups if kind in group.kinds):
                yield FigurePlan(f"{kind}-{self.name}", partial(draw, groups, kind), position)


def draw(groups: Sequence[Group], kind: str) -> Drawing:
    """Two panels: the density of the ratios, and the share of ratios below a value."""
    figure, grid = panels(1, 2, 4.5, 3.1)
    left, right = grid[0]
    mine = [group for group in groups if not _bins(group, kind).empty]
    shown = pair(mine, kind)
    named, drawn = labels(shown, kind), styles(shown)
    for group in shown:
        bins = _bins(group, kind)
        bins = bins[bins["right"] < float("inf")]
        style = {key: drawn[group.key][key] for key in ("color", "linestyle")}
        density = finite(bins["share"]) / (bins["right"] - bins["left"]).to_numpy()
        left.stairs(density, [0, *bins["right"]], label=named[group.key], **style)
        right.plot(
            [0, *bins["right"]], [0, *finite(bins["cumulative"])], label=named[group.key], **style
        )
    rate = _asked_rate(shown)
    for axes, title in ((left, "Density"), (right, "Share of steps below")):
        guide(axes, x=1)
        if rate is not None:
            guide(
                axes, x=1 - rate, color=ASKED_COLOR, linestyle="-.", label=f"1 − α = {1 - rate:.3g}"
            )
        axes.set(xlabel=r"$f_l\,/\,f_{l-1}$ of an example", title=title, xlim=(0, 2))
    legend_below(figure)
    level = level_text(kind, shown)
    title = f"{shown[0].recipe}: layer ratios per example, {level} of {kind} noise, {seeds_range(shown, kind)}"
    return Drawing(figure, title + chosen_text(shown, mine))


def _bins(group: Group, kind: str) -> pd.DataFrame:
    """The histogram at the training level; empty for a model of one layer."""
    rows = group.bins
    return rows[(rows["perturbation"] == kind) & (rows["gamma"] == group.level(kind))]


def _asked_rate(groups: Sequence[Group]) -> float | None:
    """The descent rate α that all constrained groups were asked for, where that is one number above
    0.

    A ladder of bounds asks for no ratio.
    """
    constrained = [group for group in groups if objectives.is_constrained(group.objective)]
    rates = {group.settings.get("descent.alpha") for group in constrained}
    if len(rates) != 1 or any(
        group.settings.get("descent.form") == "ladder" for group in constrained
    ):
        return None
    (rate,) = rates
    return rate if isinstance(rate, int | float) and rate > 0 else None


FIGURE = LayerRatios()
