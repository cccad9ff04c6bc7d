"""Validation losses against the limit of each constraint: the paper's example of an infeasible model.

Drawn over all recipes: of each with an infeasible constrained run, the run with most violated constraints.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from cudt.report import objectives
from cudt.report.collect import ReadRun
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.panels import layer_ticks, legend_below, line, scale_losses, wrapped_panels
from cudt.report.figures.style import FAILED_COLOR
from cudt.report.figures.words import plain
from cudt.report.groups import Group

_MOST_RUNS = 6
_MOST_LAYERS_NAMED = 6


class InfeasibleRuns(FigureType):
    """Over all recipes with an infeasible constrained run."""

    name = "infeasible-runs"
    order = 110

    def over_recipes(self, recipes: Sequence[Sequence[Group]]) -> Iterator[FigurePlan]:
        """One with a run of each recipe."""
        if worst := most_violated([run for groups in recipes for group in groups for run in group.runs]):
            yield FigurePlan(self.name, partial(draw, worst))


def most_violated(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """Of each recipe the infeasible run that violates most constraints; the run with most violations first."""
    worst: dict[str, ReadRun] = {}
    for run in sorted(runs, key=lambda run: (*run.group, run.seed)):
        if run.failing:
            worst[run.recipe] = max(worst.get(run.recipe, run), run, key=_n_failing)
    return sorted(worst.values(), key=_n_failing, reverse=True)[:_MOST_RUNS]


def _n_failing(run: ReadRun) -> tuple[int, int]:
    return len(run.failing.get("violated", [])), len(run.failing.get("relaxed", []))


def draw(runs: Sequence[ReadRun]) -> Drawing:
    """A panel for each run."""
    figure, axes = wrapped_panels(len(runs), 3, width=3.5, height=2.9)
    for panel, run in zip(axes, runs, strict=True):
        _draw_run(panel, run)
    legend_below(figure)
    title = "Constraints violated on validation data: of each recipe, the run with most violated layers"
    return Drawing(figure, f"{title}, 1 seed each")


def _draw_run(axes: Any, run: ReadRun) -> None:
    verdicts = run.info.verdicts
    layers, losses, allowed, errors = (
        np.array([getattr(verdict, name) for verdict in verdicts], dtype=float)
        for name in ("layer", "loss", "allowed", "standard_error")
    )
    no_band = np.full(len(layers), np.nan)
    line(axes, layers, losses, no_band, no_band, "validation loss", objectives.style(run.objective))
    # A verdict allows two standard errors.
    axes.errorbar(layers, np.where(np.isfinite(allowed), allowed, np.nan), yerr=2 * np.nan_to_num(errors), fmt="_",
                  color="0.35", markersize=11, elinewidth=1, label="allowed, ± 2 standard errors")  # fmt: skip
    for word, marker in (("violated", "X"), ("relaxed", "P")):
        failing = np.array([verdict.verdict == word for verdict in verdicts])
        if failing.any():
            style = {"color": FAILED_COLOR, "marker": marker, "s": 70, "zorder": 4}
            axes.scatter(layers[failing], losses[failing], label=word, **style)
    title = f"{plain(run.recipe)}, seed {run.seed}\n{_failing_text(run)}"
    axes.set(xlabel="layer", ylabel="validation loss", title=title)
    axes.title.set_fontsize(9)
    layer_ticks(axes, [int(layer) for layer in layers])
    scale_losses(axes, [*losses, *allowed, *(allowed + 2 * np.nan_to_num(errors))])


def _failing_text(run: ReadRun) -> str:
    """The layers whose constraints fail; of many, the first six and the last."""
    layers, count = sorted(itertools.chain.from_iterable(run.failing.values())), len(run.info.verdicts)
    if len(layers) == count > 1:
        return f"fails at all {count} layers"
    more = f" … {layers[-1]}" if len(layers) > _MOST_LAYERS_NAMED else ""
    named = ", ".join(map(str, layers[:_MOST_LAYERS_NAMED])) + more
    return f"fails at layer{'s' if len(layers) > 1 else ''} {named} of {count}"


FIGURE = InfeasibleRuns()
