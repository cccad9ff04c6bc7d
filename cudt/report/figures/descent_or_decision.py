"""Robustness against the layer at which runs decide, and against the share of their layers that lower the loss.

Drawn over all runs that classify, a column for each cell (../comparable.py) with at least six of them: recipe, depth
and γ_train. Each point is a run. ../decision.py defines both measures and the correlations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from cudt.report.decision import MEASURES, Correlation, Panel, correlate, decisions, panels, signed
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.panels import legend_below
from cudt.report.figures.panels import panels as drawn_panels
from cudt.report.figures.words import kind_looks, objective_kind, plain
from cudt.report.groups import Group

#: Columns that fit next to each other.
_MOST_COLUMNS = 4
#: Distance between points of different objectives at the same share, and the number of runs that makes points faint.
_APART, _MANY_RUNS = 0.012, 60
_LABELS = {
    "decision_share": "decision layer as a share of depth",
    "descending_share": "share of layers that lower the test loss",
}


class DescentOrDecision(FigureType):
    """Over all recipes that classify."""

    name = "descent-or-decision"
    order = 115
    reads_ablations = True

    def over_recipes(self, recipes: Sequence[Sequence[Group]]) -> Iterator[FigurePlan]:
        """One; several where the columns do not fit next to each other."""
        runs = [run for groups in recipes for group in groups for run in group.runs]
        found = panels(decisions(runs))
        pages = [found[start : start + _MOST_COLUMNS] for start in range(0, len(found), _MOST_COLUMNS)]
        for number, page in enumerate(pages, 1):
            is_one = len(pages) == 1
            name = self.name if is_one else f"{self.name}-{number}"
            yield FigurePlan(name, partial(draw, page, "" if is_one else f" ({number} of {len(pages)})"))


def draw(shown: Sequence[Panel], page: str = "") -> Drawing:
    """A column for each cell: the mean OOD accuracy against each measure."""
    figure, grid = drawn_panels(len(MEASURES), len(shown), 3.6, 2.8)
    looks = kind_looks(one.run for panel in shown for one in panel.shown)
    for column, panel in enumerate(shown):
        for row, measure in enumerate(MEASURES):
            axes = grid[row, column]
            _draw_runs(axes, panel, measure, looks)
            axes.set(xlabel=_LABELS[measure], xlim=(-0.04, 1.06))
            _write_correlation(axes, correlate(panel, measure))
        cell = panel.cell
        setting = f"L = {cell.layers}, γ_train = {cell.gamma_train:g}{cell.apart}, {panel.noise}"
        grid[0, column].set_title(f"{plain(panel.family)}\n{setting}", fontsize=9)
    for row in range(len(MEASURES)):
        grid[row, 0].set_ylabel("mean OOD accuracy")
    legend_below(figure)
    return Drawing(figure, f"{_caption()}{page}{_left_out(shown)}")


def _draw_runs(axes: Any, panel: Panel, measure: str, looks: dict[Any, tuple[str, dict[str, Any]]]) -> None:
    """A point for each run, fainter where there are many.

    Shares of few layers coincide, so objectives are set apart.
    """
    alpha = 0.8 if len(panel.shown) < _MANY_RUNS else 0.45
    for index, (kind, (label, style)) in enumerate(looks.items()):
        mine = [one for one in panel.shown if objective_kind(one.run) == kind]
        aside = _APART * (index - (len(looks) - 1) / 2)
        x, y = [one.measure(measure) + aside for one in mine], [one.ood_mean for one in mine]
        look = {"color": style["color"], "marker": style["marker"], "linestyle": "none"}
        axes.plot(x, y, label=label, markersize=5, alpha=alpha, **look)


def _write_correlation(axes: Any, found: Correlation) -> None:
    """Above the points, where it covers none."""
    text = f"ρ = {signed(found.over_all)} ({found.runs} runs)"
    text += f"\nwithin objectives {signed(found.within)}, other fixed {signed(found.other_fixed)}"
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.28 * (high - low))
    axes.text(0.02, 0.98, text, transform=axes.transAxes, va="top", fontsize=8, color="0.3")


def _caption() -> str:
    return (
        "Is it the descent, or merely early decisions? Each point is a run, at its mean accuracy over the noise levels "
        "above γ_train. Above: against the first layer that has nine tenths of what the last layer is better than "
        "chance, as a share of depth. Below: against the share of layers that lower the test loss at γ_train. ρ is "
        "Spearman's correlation: over all runs, after the mean of each objective is subtracted (within objectives), "
        "and with the measure of the other row held fixed. Objectives are drawn slightly aside of each other"
    )


def _left_out(shown: Sequence[Panel]) -> str:
    count = sum(panel.left_out for panel in shown)
    if not count:
        return ""
    runs = "1 run is" if count == 1 else f"{count} runs are"
    return f"; {runs} not shown: evaluated at other levels, or no better than chance at γ_train"


FIGURE = DescentOrDecision()
