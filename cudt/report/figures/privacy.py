"""The metric against the privacy ε of one token, for recipes whose runs have privacy.csv (`cudt privacy`).

ε grows to the right: what is private is on the left, and up to ε = 10 it is shaded. At the same γ, runs have different
ε, because each has embeddings of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from cudt.method.privacy import NOISE, REASONABLE, UNIT
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import pair, with_curve
from cudt.report.figures.panels import legend_below, line, panels
from cudt.report.figures.style import MOST_BANDS
from cudt.report.figures.words import chosen_text, labels, seeds_range, styles
from cudt.report.groups import Group
from cudt.report.privacy import deltas, shared_delta

#: ε by level of noise.
Epsilons = Mapping[float, float]


class Privacy(FigureType):
    """For each recipe with privacy.csv in all runs of a group."""

    name = "privacy"
    order = 37

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One for the smallest δ that most groups have."""
        found = with_curve(groups, NOISE)
        delta = shared_delta([group.runs for group in found])
        if delta is not None:
            shown = [group for group in found if delta in deltas(group.runs)]
            yield FigurePlan(self.name, partial(draw, shown, delta), is_main=False)


def draw(groups: Sequence[Group], delta: float) -> Drawing:
    """A line for each group: the means of the metric over seeds, against the geometric means of ε."""
    shown = pair(groups, NOISE)
    figure, ((axes,),) = panels(1, 1, width=5.2)
    axes.set_xscale("log")
    named, drawn = labels(shown, NOISE), styles(shown)
    for group in shown:
        found = epsilons(group, delta)
        rows = group.curve(NOISE)
        rows = rows[rows["gamma"].isin(list(found))].sort_values("gamma", ascending=False)
        x, label, style = [found[gamma] for gamma in rows["gamma"]], named[group.key], drawn[group.key]
        line(axes, x, rows["mean"], rows["lower"], rows["upper"], label, style, crowded=len(shown) > MOST_BANDS)
    # Extends the axis to where privacy would begin.
    low = min(axes.get_xlim()[0], REASONABLE / 2)
    axes.axvspan(low, REASONABLE, color="0.92", zorder=0)
    axes.set_xlim(left=low)
    axes.set(xlabel=f"privacy ε of one {UNIT} at δ = {delta:g} (shaded: up to {REASONABLE:g})")
    axes.set_ylabel(f"test {shown[0].metric}")
    legend_below(figure)
    chosen = chosen_text(shown, groups)
    title = f"{shown[0].recipe}: {shown[0].metric} against privacy, {seeds_range(shown, NOISE)}{chosen}"
    has_clean = any((group.curve(NOISE)["gamma"] == 0).any() for group in shown)
    return Drawing(figure, title + ("; γ = 0 is left out: without noise, ε is infinite" if has_clean else ""))


def epsilons(group: Group, delta: float) -> Epsilons:
    """The geometric mean of ε over the runs of a group, at each level that all of them have; without γ = 0."""
    tables = [run.run.read_table("privacy") for run in group.runs]
    each = [
        rows[(rows["unit"] == UNIT) & (rows["delta"] == delta) & np.isfinite(rows["epsilon"]) & (rows["epsilon"] > 0)]
        for rows in tables
    ]
    by_run = [dict(zip(rows["gamma"], rows["epsilon"], strict=True)) for rows in each]
    shared = sorted(set.intersection(*map(set, by_run)))
    return {gamma: float(np.exp(np.mean([np.log(one[gamma]) for one in by_run]))) for gamma in shared}


FIGURE = Privacy()
