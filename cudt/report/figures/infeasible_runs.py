"""Runs that do not keep their constraints, next to ERM: the paper's example of an infeasible model.

Drawn over all recipes: of each with an infeasible constrained run, the run with most violated
constraints (of the evaluated ones, where there are any) and the ERM run it is compared with. Three
panels each: validation losses with the limit of each constraint, the metric under noise, and the
metric of each layer; only the first where nothing was evaluated. The metric is PSNR where the task
measures it, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cudt.noise import scale_of, training_level
from cudt.report import objectives
from cudt.report.collect import ReadRun
from cudt.report.comparable import matches
from cudt.report.compare import choose
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.panels import layer_ticks, legend_below, line, panels, scale_losses
from cudt.report.figures.style import FAILED_COLOR
from cudt.report.figures.words import plain
from cudt.report.groups import Group
from cudt.report.objectives import BASELINE
from cudt.utils.ranges import ranges

_MOST_RUNS = 6
#: A metric that tasks measure besides their own; the paper's figure has it.
_PSNR = "PSNR"


class InfeasibleRun(NamedTuple):
    """An infeasible run, and the ERM run that it is compared with where there is one."""

    run: ReadRun
    erm: ReadRun | None

    @property
    def runs(self) -> list[ReadRun]:
        return [self.run] if self.erm is None else [self.run, self.erm]

    @property
    def is_evaluated(self) -> bool:
        return any(run.curves for run in self.runs)


class InfeasibleRuns(FigureType):
    """Over all recipes with an infeasible constrained run."""

    name = "infeasible-runs"
    order = 110

    def over_recipes(self, recipes: Sequence[Sequence[Group]]) -> Iterator[FigurePlan]:
        """One with a run of each recipe."""
        runs = [run for groups in recipes for group in groups for run in group.runs]
        if worst := most_violated(runs):
            yield FigurePlan(
                self.name,
                partial(draw, [InfeasibleRun(run, _compared_erm(run, runs)) for run in worst]),
            )


def most_violated(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """Of each recipe the infeasible run that violates most constraints; the run with most
    violations first.

    Evaluated runs come before others, of which only the losses can be shown.
    """
    worst: dict[str, ReadRun] = {}
    for run in sorted(runs, key=lambda run: (*run.group, run.seed)):
        if run.failing:
            worst[run.recipe] = max(worst.get(run.recipe, run), run, key=_rank)
    return sorted(worst.values(), key=_rank, reverse=True)[:_MOST_RUNS]


def _rank(run: ReadRun) -> tuple[bool, int, int]:
    return (
        bool(run.curves),
        len(run.failing.get("violated", [])),
        len(run.failing.get("relaxed", [])),
    )


def _compared_erm(run: ReadRun, runs: Sequence[ReadRun]) -> ReadRun | None:
    """The ERM run that the tables compare a run with; of several seeds, its own."""
    for match in matches(runs):
        if run in match:
            found = choose(match, _kind(run)).get(BASELINE)
            candidates = found.runs if found is not None else []
            return next(
                (one for one in candidates if one.seed == run.seed), next(iter(candidates), None)
            )
    return None


def _kind(run: ReadRun) -> str:
    """The kind of noise that a run is shown under: that of training, else the first evaluated."""
    trained = str(run.settings["noise.kind"])
    return trained if trained in run.curves else min(run.curves, default=trained)


def draw(shown: Sequence[InfeasibleRun]) -> Drawing:
    """A row for each run."""
    drawn = [
        _draw_constraints,
        *([_draw_curves, _draw_layers] if any(one.is_evaluated for one in shown) else []),
    ]
    figure, grid = panels(len(shown), len(drawn), 3.5, 2.7)
    for row, one in zip(grid, shown, strict=True):
        for axes, draw_panel in zip(row, drawn, strict=True):
            draw_panel(axes, one)
            if not any(len(line.get_xdata()) for line in axes.lines):
                axes.remove()
    legend_below(figure)
    chosen = (
        "of each recipe, the run with most violated layers on validation data, evaluated ones first"
    )
    return Drawing(figure, f"Infeasible runs{_next_to(shown)}: {chosen}, 1 seed each")


def _next_to(shown: Sequence[InfeasibleRun]) -> str:
    counts = sum(one.erm is not None for one in shown)
    if not counts:
        return ""
    return (
        " next to ERM" if counts == len(shown) else " next to ERM where there is a comparable run"
    )


def _draw_constraints(axes: Any, one: InfeasibleRun) -> None:
    """Draw the validation losses, what was allowed, and which constraints fail."""
    verdicts = one.run.info.verdicts
    layers, losses, allowed, errors = (
        np.array([getattr(verdict, name) for verdict in verdicts], dtype=float)
        for name in ("layer", "loss", "allowed", "standard_error")
    )
    for run in one.runs:
        of_run = [verdict.loss for verdict in run.info.verdicts]
        _line(axes, run, range(1, len(of_run) + 1), of_run)
    # A verdict allows two standard errors.
    axes.errorbar(layers, np.where(np.isfinite(allowed), allowed, np.nan), yerr=2 * np.nan_to_num(errors), fmt="_",
                  color="0.35", markersize=11, elinewidth=1, label="allowed, ± 2 standard errors")  # fmt: skip
    for word, marker in (("violated", "X"), ("relaxed", "P")):
        failing = np.array([verdict.verdict == word for verdict in verdicts])
        if failing.any():
            style = {"color": FAILED_COLOR, "marker": marker, "s": 70, "zorder": 4}
            axes.scatter(layers[failing], losses[failing], label=word, **style)
    axes.set(
        xlabel="layer",
        ylabel="validation loss",
        title=f"{_name(one.run)}\n{_failing_text(one.run)}",
    )
    axes.title.set_fontsize(9)
    layer_ticks(axes, [int(layer) for layer in layers])
    of_erm = [verdict.loss for verdict in one.erm.info.verdicts] if one.erm is not None else []
    scale_losses(axes, [*losses, *allowed, *(allowed + 2 * np.nan_to_num(errors)), *of_erm])


def _draw_curves(axes: Any, one: InfeasibleRun) -> None:
    """Draw the metric against the noise level."""
    kind = _kind(one.run)
    metric = _metric(one.run, one.run.ood["metric"])
    for run in one.runs:
        rows = run.ood[(run.ood["perturbation"] == kind) & (run.ood["metric"] == metric)]
        values = rows.groupby("gamma")["value"].mean()
        _line(axes, run, values.index, values)
    axes.set(
        xlabel=scale_of(kind).axis, ylabel=f"test {_spelled(metric)}", title=f"Under {kind} noise"
    )


def _draw_layers(axes: Any, one: InfeasibleRun) -> None:
    """Draw the metric of each layer on test data, at the training level."""
    kind = _kind(one.run)
    level = training_level(kind, one.run.gamma_train)
    tables = [_layer_metrics(run, kind, level) for run in one.runs]
    metric = _metric(one.run, tables[0]["name"])
    for run, table in zip(one.runs, tables, strict=True):
        rows = table[table["name"] == metric].sort_values("layer")
        _line(axes, run, rows["layer"], rows["value"])
    axes.set(
        xlabel="layer",
        ylabel=f"test {_spelled(metric)}",
        title=f"By layer at {scale_of(kind).symbol} = {level:g}",
    )
    layer_ticks(axes, range(1, one.run.n_layers + 1))


def _layer_metrics(run: ReadRun, kind: str, level: float) -> pd.DataFrame:
    """Every metric of each layer on test data at one level, as (layer, name, value)."""
    own = run.layers[run.layers["split"] == "test"].assign(
        name=run.metric, value=run.layers["metric"]
    )
    rows = pd.concat([own, run.run.read_table("layer_metrics")], ignore_index=True)
    return rows[(rows["perturbation"] == kind) & (rows["gamma"] == level)]


def _metric(run: ReadRun, names: Any) -> str:
    return _PSNR if _PSNR in set(names) else run.metric


def _line(axes: Any, run: ReadRun, x: Any, y: Any) -> None:
    no_band = np.full(len(y), np.nan)
    line(
        axes,
        x,
        y,
        no_band,
        no_band,
        objectives.label(run.objective),
        objectives.style(run.objective),
    )


def _spelled(metric: str) -> str:
    return f"{metric} (dB)" if metric == _PSNR else metric.replace("_", " ")


def _name(run: ReadRun) -> str:
    return (
        f"{plain(run.recipe)}, L = {run.n_layers}, γ_train = {run.gamma_train:g}, seed {run.seed}"
    )


def _failing_text(run: ReadRun) -> str:
    """The layers whose constraints fail."""
    layers, count = (
        [layer for mine in run.failing.values() for layer in mine],
        len(run.info.verdicts),
    )
    if len(layers) == count > 1:
        return f"fails at all {count} layers"
    return f"fails at layer{'s' if len(layers) > 1 else ''} {ranges(layers)} of {count}"


FIGURE = InfeasibleRuns()
