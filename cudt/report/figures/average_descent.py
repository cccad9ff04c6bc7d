"""f_l / f_0 against relative depth l / L, averaged over runs: the paper's average trajectory.

Drawn over all recipes, where at least two runs have losses by layer. A panel for each metric, a
line for each objective.

The paper averages the losses of models of one depth. Losses of different depths and tasks cannot be
averaged, but their ratios to f_0 can. f_0 is what the first constraint is relative to; a ratio to
f_1 would reward a bad first layer. Ratios multiply from layer to layer, so means are geometric. The
band is one standard deviation. All losses are on test data, each run at its training level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from cudt.report import objectives
from cudt.report.collect import ReadRun
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind
from cudt.report.figures.panels import guide, legend_below, line, scale_losses, wrapped_panels
from cudt.report.groups import Group

#: Steps between the input and the last layer.
_STEPS = 24

#: By metric and objective: log f_l / f_0 at even steps of relative depth, a row for each run.
Trajectories = dict[tuple[str, str], np.ndarray[Any, Any]]


class AverageDescent(FigureType):
    """Over all recipes."""

    name = "average-descent"
    order = 120

    def over_recipes(self, recipes: Sequence[Sequence[Group]]) -> Iterator[FigurePlan]:
        """One, where at least two runs have losses by layer."""
        groups = [group for mine in recipes for group in mine]
        found = trajectories(groups)
        if sum(map(len, found.values())) > 1:
            yield FigurePlan(
                self.name, partial(draw, found, [run for group in groups for run in group.runs])
            )


def trajectories(groups: Sequence[Group]) -> Trajectories:
    """log f_l / f_0 of each run, by metric and objective."""
    found: dict[tuple[str, str], list[Any]] = {}
    for group in groups:
        kind = main_kind([group])
        for run in group.runs if kind else ():
            ratios = _ratios(run, kind or "", group.level(kind or ""))
            if ratios:
                depth = np.linspace(0, 1, len(ratios))
                steps = np.interp(np.linspace(0, 1, _STEPS + 1), depth, np.log(ratios))
                found.setdefault((group.metric, group.objective), []).append(steps)
    return {key: np.array(logs) for key, logs in sorted(found.items())}


def _ratios(run: ReadRun, kind: str, level: float) -> list[float]:
    """f_0 / f_0, f_1 / f_0 … f_L / f_0; empty where one is not a positive number."""
    table = run.layers
    # Comparing plain arrays is faster, and this is done for every run.
    here = (table["gamma"].to_numpy() == level) & (table["split"].to_numpy() == "test")
    rows = table[here & (table["perturbation"].to_numpy() == kind)]
    ratios = [1.0, *(rows.sort_values("layer")["loss"] / run.info.reference)]
    return (
        ratios
        if len(ratios) > 1 and all(ratio > 0 and math.isfinite(ratio) for ratio in ratios)
        else []
    )


def draw(found: Trajectories, runs: Sequence[ReadRun]) -> Drawing:
    """A panel for each metric; `runs` includes those without a trajectory."""
    metrics = list(dict.fromkeys(metric for metric, _ in found))
    called = objectives.labels(objective for _, objective in found)
    figure, axes = wrapped_panels(len(metrics), 3, width=4.2, height=3.2)
    for (metric, objective), logs in found.items():
        _draw_mean(
            axes[metrics.index(metric)], logs, called[objective], objectives.style(objective)
        )
    for panel, metric in zip(axes, metrics, strict=True):
        counts = ", ".join(
            f"{len(logs)} {called[name]}" for (of, name), logs in found.items() if of == metric
        )
        guide(panel, y=1)
        panel.set(xlabel="relative depth $l/L$", title=f"Models judged by {metric}\n({counts})")
        scale_losses(panel, [value for mine in panel.get_lines() for value in mine.get_ydata()])
    axes[0].set_ylabel("test loss $f_l/f_0$")
    legend_below(figure)
    total = sum(map(len, found.values()))
    return Drawing(
        figure,
        f"Average descent over {total} runs, each at its training noise "
        f"level{_left_out(runs, total)}",
    )


def _left_out(runs: Sequence[ReadRun], shown: int) -> str:
    """How many runs are not shown and why, for the caption."""
    without = sum(not run.curves for run in runs)
    reasons = {
        "not evaluated": without,
        "without positive test losses at this level": len(runs) - shown - without,
    }
    texts = [f"{count} {reason}" for reason, count in reasons.items() if count]
    return f"; left out: {', '.join(texts)}" if texts else ""


def _draw_mean(axes: Any, logs: np.ndarray[Any, Any], label: str, style: dict[str, Any]) -> None:
    depth = np.linspace(0, 1, _STEPS + 1)
    mean, spread = (
        logs.mean(0),
        logs.std(0, ddof=1) if len(logs) > 1 else np.full(len(depth), np.nan),
    )
    ends = (np.exp(mean - spread), np.exp(mean + spread))
    line(axes, depth, np.exp(mean), *ends, label, {**style, "markevery": 4})


FIGURE = AverageDescent()
