"""Layers under the magnifying glass: errors over layers, constraints that were not kept, the average descent."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cudt.noise.base import scale_of
from cudt.report.collect import ReadRun
from cudt.report.figures.choose import main_kind, pair
from cudt.report.figures.style import (
    STYLES,
    Figure,
    guide,
    layer_ticks,
    legend_below,
    line,
    panels,
    plain,
    save,
    scale_losses,
    wrapped,
)
from cudt.report.figures.words import counted, labels, styles
from cudt.report.groups import Group

_MOST_INFEASIBLE = 6
#: Points between the input and the last layer.
_RESOLUTION = 24

#: By metric and objective: a row for each run.
Trajectories = dict[tuple[str, str], np.ndarray[Any, Any]]


# ---------------------------------------------------------------- errors over layers


def errors_over_layers(groups: Sequence[Group], kind: str, stem: Path) -> Figure:
    """The error of every layer's answer, constrained against ERM: the paper's error rate over layers.

    Clean, at the level of training and at the highest level; 1 − accuracy, or the metric where that is an error.
    """
    shown = pair(groups, kind)
    levels = compared_levels(shown, kind)
    figure, grid = panels(1, len(levels), 3.4, 2.8, sharey=True)
    named, drawn = labels(shown, kind), styles(shown)
    for axes, (level, words) in zip(grid[0], levels.items(), strict=True):
        for group in shown:
            rows = group.at(kind, level)
            error = 1 - rows["metric"] if group.higher_is_better else rows["metric"]
            ends = (error - rows["metric_std"], error + rows["metric_std"])
            line(axes, rows["layer"], error, *ends, named[group.key], drawn[group.key])
        axes.set(xlabel="layer", title=f"{scale_of(kind).symbol} = {level:g}{words}")
        layer_ticks(axes, range(1, max(group.n_layers for group in shown) + 1))
    first = shown[0]
    name = f"1 − {first.metric}" if first.higher_is_better else first.metric
    grid[0, 0].set_ylabel(f"test error ({name})" if first.higher_is_better else f"test {name}")
    legend_below(figure)
    title = f"{first.recipe}: {name} over layers under {kind} noise, {counted(shown, kind)}"
    return save(figure, first.recipe, title, stem)


def compared_levels(groups: Sequence[Group], kind: str) -> dict[float, str]:
    """The lowest level that all groups have layers at, that of training and the highest, each with words for it."""
    shared = set.intersection(*({*_tested(group, kind)} for group in groups)) if groups else set()
    if not shared:
        return {}
    words = {min(shared): "", groups[0].level(kind): " (γ_train)", max(shared): ""}
    if scale_of(kind).symbol == "p":
        words[groups[0].level(kind)] = ""
    return {level: words[level] for level in sorted(words) if level in shared}


def _tested(group: Group, kind: str) -> list[float]:
    rows = group.layers
    return [*rows[(rows["split"] == "test") & (rows["perturbation"] == kind)]["gamma"]]


# ---------------------------------------------------------------- constraints that were not kept


def infeasible_runs(runs: Sequence[ReadRun], stem: Path) -> Figure:
    """Losses on validation data against what each constraint allowed: the paper's example of an infeasible model."""
    figure, axes = wrapped(len(runs), 3, width=3.5, height=2.9)
    for panel, run in zip(axes, runs, strict=True):
        _draw_verdicts(panel, run)
    legend_below(figure)
    title = "Constraints that were not kept on validation data: of each recipe the run with most violated layers"
    return save(figure, "", f"{title}, 1 seed each", stem)


def most_violated(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """The infeasible constrained run of each recipe that fails at most layers; those of most failures first."""
    worst: dict[str, ReadRun] = {}
    for run in runs:
        if run.failing:
            worst[run.recipe] = max(worst.get(run.recipe, run), run, key=_violated)
    return sorted(worst.values(), key=_violated, reverse=True)[:_MOST_INFEASIBLE]


def _violated(run: ReadRun) -> tuple[int, int]:
    return len(run.failing.get("violated", [])), len(run.failing.get("relaxed", []))


def _draw_verdicts(axes: Any, run: ReadRun) -> None:
    verdicts = run.info.verdicts
    layers, losses, allowed, errors = (
        np.array([getattr(verdict, name) for verdict in verdicts], dtype=float)
        for name in ("layer", "loss", "allowed", "standard_error")
    )
    nothing = np.full(len(layers), np.nan)
    line(axes, layers, losses, nothing, nothing, "validation loss", STYLES["constrained"])
    # Two standard errors are what a verdict grants.
    axes.errorbar(layers, np.where(np.isfinite(allowed), allowed, np.nan), yerr=2 * np.nan_to_num(errors), fmt="_",
                  color="0.35", markersize=11, elinewidth=1, label="allowed, ± 2 standard errors")  # fmt: skip
    for word, marker in (("violated", "X"), ("relaxed", "P")):
        wrong = np.array([verdict.verdict == word for verdict in verdicts])
        if wrong.any():
            style = {"color": STYLES["erm"]["color"], "marker": marker, "s": 70, "zorder": 4}
            axes.scatter(layers[wrong], losses[wrong], label=word, **style)
    axes.set(xlabel="layer", ylabel="validation loss", title=f"{plain(run.recipe)}, seed {run.seed}\n{_fails(run)}")
    axes.title.set_fontsize(9)
    layer_ticks(axes, [int(layer) for layer in layers])
    scale_losses(axes, [*losses, *allowed, *(allowed + 2 * np.nan_to_num(errors))])


def _fails(run: ReadRun) -> str:
    """Which layers, of many the first."""
    layers, count = sorted(itertools.chain.from_iterable(run.failing.values())), len(run.info.verdicts)
    if len(layers) == count > 1:
        return f"not kept at any of {count} layers"
    named = ", ".join(map(str, layers[:6])) + (f" … {layers[-1]}" if len(layers) > 6 else "")
    return f"not kept at layer{'s' if len(layers) > 1 else ''} {named} of {count}"


# ---------------------------------------------------------------- the average descent


def average_trajectory(found: Trajectories, n_runs: int, stem: Path) -> Figure:
    """f_l / f_0 against relative depth l / L over all runs, by objective: the paper's average trajectory.

    The paper averages losses of models of one depth. Over all depths and losses only shares can be averaged: of f_0,
    the number that the first constraint counts from, since a share of f_1 would praise a bad first layer.
    Means are geometric, as shares of shares multiply; the band is one standard deviation. Test data, each run at its
    level of training. A panel for each metric.
    """
    metrics = list(dict.fromkeys(metric for metric, _ in found))
    figure, axes = wrapped(len(metrics), 3, width=4.2, height=3.2)
    depth = np.linspace(0, 1, _RESOLUTION + 1)
    for (metric, objective), logs in found.items():
        panel = axes[metrics.index(metric)]
        mean, spread = logs.mean(0), logs.std(0, ddof=1) if len(logs) > 1 else np.full(len(depth), np.nan)
        style = {**STYLES[objective], "markevery": 4}
        ends = (np.exp(mean - spread), np.exp(mean + spread))
        line(panel, depth, np.exp(mean), *ends, f"{objective}", style)
    for panel, metric in zip(axes, metrics, strict=True):
        counts = ", ".join(f"{len(logs)} {objective}" for (of, objective), logs in found.items() if of == metric)
        guide(panel, y=1)
        panel.set(xlabel="relative depth $l/L$", title=f"Models judged by {metric}\n({counts})")
        drawn = [value for mine in panel.get_lines() for value in mine.get_ydata()]
        scale_losses(panel, drawn)
    axes[0].set_ylabel("test loss $f_l/f_0$")
    legend_below(figure)
    total = sum(map(len, found.values()))
    left_out = n_runs - total
    less = f"; without {left_out} that have no positive test losses" if left_out else ""
    return save(figure, "", f"Average descent over {total} runs, each at its level of training{less}", stem)


def trajectories(groups: Sequence[Group]) -> Trajectories:
    """log f_l / f_0 of each run at even steps of relative depth, by metric and objective."""
    found: dict[tuple[str, str], list[Any]] = {}
    for group in groups:
        kind = main_kind([group])
        for run in group.runs if kind else ():
            shares = _shares(run, kind or "", group.level(kind or ""))
            if shares:
                places = np.linspace(0, 1, len(shares))
                steps = np.interp(np.linspace(0, 1, _RESOLUTION + 1), places, np.log(shares))
                found.setdefault((group.metric, group.objective), []).append(steps)
    return {key: np.array(logs) for key, logs in sorted(found.items())}


def _shares(run: ReadRun, kind: str, level: float) -> list[float]:
    """f_0 / f_0, f_1 / f_0 … f_L / f_0; nothing where one is no positive number."""
    table = run.layers
    # One comparison after the other on plain arrays: this is done for every run there is.
    here = (table["gamma"].to_numpy() == level) & (table["split"].to_numpy() == "test")
    rows = table[here & (table["perturbation"].to_numpy() == kind)]
    shares = [1.0, *(rows.sort_values("layer")["loss"] / run.info.reference)]
    return shares if len(shares) > 1 and all(share > 0 and math.isfinite(share) for share in shares) else []
