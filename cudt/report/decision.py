"""Is it the descent, or merely early decisions? For each run that classifies: the layer at which it decides, the share
of its layers that lower the loss, and how robust it is.

The decision layer is the first whose test accuracy at γ_train reaches chance + 0.9·(a_L − chance), where a_L is the
accuracy of the last layer. Constraints that make every layer lower the loss also make a model decide earlier, and so
does training every layer (`supervised`). Which of the two goes with robustness shows in the correlations over runs that
are comparable (comparable.py): over all runs, within objectives, and of each with the other held fixed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cudt.evaluation.curves import area_under_curve
from cudt.noise.base import training_level
from cudt.report.claims.base import mean_metric, trained_noise
from cudt.report.claims.descent import falling
from cudt.report.collect import ReadRun
from cudt.report.comparable import ComparableCell, by_cell, families
from cudt.report.names import labels
from cudt.tasks.classification import Classification

#: Share of what the last layer is better than chance that the decision layer has to reach.
DECIDED = 0.9
#: A correlation over fewer runs says nothing.
FEWEST_RUNS = 6
#: What is correlated with robustness, and what figures and tables call it.
MEASURES = {"decision_share": "decision layer / L", "descending_share": "share of layers that lower the loss"}

COLUMNS = [
    *("recipe", "objective", "variant", "label", "seed", "gamma_train", "layers", "perturbation"),
    *("chance", "accuracy", "decision_layer", "decision_share", "descending_share"),
    *("id_mean", "ood_mean", "auc", "levels", "run"),
]
CORRELATIONS = [
    *("recipe", "layers", "gamma_train", "perturbation", "measure", "runs", "correlation"),
    *("runs_within", "within_objectives", "other_fixed"),
]


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Decision:
    """When a run decides, whether its layers descend, and how robust it is; nan for what is not known."""

    run: ReadRun
    chance: float
    accuracy: float
    """Of the last layer on test data at γ_train."""
    layer: float
    descending_share: float
    id_mean: float
    ood_mean: float
    auc: float

    @property
    def share(self) -> float:
        return self.layer / self.run.n_layers

    @property
    def levels(self) -> tuple[float, ...]:
        return tuple(self.run.curves[trained_noise(self.run)])

    def measure(self, name: str) -> float:
        return {"decision_share": self.share, "descending_share": self.descending_share}[name]

    @property
    def is_complete(self) -> bool:
        return bool(np.isfinite([self.share, self.descending_share, self.ood_mean]).all())


def decision_layer(accuracies: Sequence[float], chance: float) -> float:
    """The first layer, from 1, that reaches chance + 0.9·(a_L − chance); nan if the last one is no better than chance.

    `accuracies` are those of layers 1 … L.
    """
    if not accuracies or not accuracies[-1] > chance:
        return math.nan
    wanted = chance + DECIDED * (accuracies[-1] - chance)
    # Rounding must not move an accuracy that is exactly at the threshold below it.
    return 1.0 + next(index for index, accuracy in enumerate(accuracies) if accuracy >= wanted - 1e-12)


def decisions(runs: Sequence[ReadRun]) -> dict[ComparableCell, list[Decision]]:
    """The evaluated classification runs of each cell, under the noise that they were trained with."""
    classifying = [
        run for run in runs if run.metric == Classification.metric_name and run.curves.get(trained_noise(run))
    ]
    found = {}
    for cell, mine in by_cell(classifying).items():
        accuracies = [_accuracies(run) for run in mine]
        chance = _chance(mine[0], accuracies)
        found[cell] = [_decision(run, each, chance) for run, each in zip(mine, accuracies, strict=True)]
    return found


def _accuracies(run: ReadRun) -> list[float]:
    """The accuracy of each layer on test data at γ_train; empty if it was not measured."""
    noise, table = trained_noise(run), run.layers
    level, columns = training_level(noise, run.gamma_train), ("split", "perturbation", "gamma", "layer", "metric")
    # Without pandas, whose start-up at each of many runs takes longer than the work.
    rows = zip(*(table[name].tolist() for name in columns), strict=True)
    found = {layer: accuracy for *where, layer, accuracy in rows if where == ["test", noise, level]}
    return [found[layer] for layer in sorted(found)]


def _chance(run: ReadRun, accuracies: Sequence[Sequence[float]]) -> float:
    """1 / number of classes; if the recipe does not tell it, the smallest accuracy of a layer of any run of the cell.

    One number for all runs of a cell: the smallest accuracy of a run's own layers would be high for a run that decides
    early.
    """
    task = run.run.recipe.settings.task
    n_classes = getattr(task, "classes", None) or getattr(task, "n_classes", None)
    if n_classes:
        return 1 / float(n_classes)
    return min((accuracy for mine in accuracies for accuracy in mine), default=math.nan)


def _decision(run: ReadRun, accuracies: Sequence[float], chance: float) -> Decision:
    noise = trained_noise(run)
    curve = run.curves[noise]
    return Decision(
        run,
        chance,
        accuracies[-1] if accuracies else math.nan,
        decision_layer(accuracies, chance),
        falling(run, "ID"),
        mean_metric(run, noise, "ID"),
        mean_metric(run, noise, "OOD"),
        area_under_curve([*curve], [*curve.values()]) if len(curve) > 1 else math.nan,
    )


def table(cells: Mapping[ComparableCell, Sequence[Decision]]) -> pd.DataFrame:
    """decision.csv: a row for each run."""
    every = [one for mine in cells.values() for one in mine]
    named = labels([one.run for one in every])
    rows = [
        {
            **dict(zip(COLUMNS[:3], one.run.group, strict=True)),
            "label": named[one.run.group],
            "seed": one.run.seed,
            "gamma_train": one.run.gamma_train,
            "layers": one.run.n_layers,
            "perturbation": trained_noise(one.run),
            "chance": one.chance,
            "accuracy": one.accuracy,
            "decision_layer": one.layer,
            "decision_share": one.share,
            "descending_share": one.descending_share,
            "id_mean": one.id_mean,
            "ood_mean": one.ood_mean,
            "auc": one.auc,
            "levels": " ".join(f"{level:g}" for level in one.levels),
            "run": one.run.name,
        }
        for one in every
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


# ---------------------------------------------------------------- correlations over the runs of a cell


@dataclass(frozen=True)
class Panel:
    """Runs of one cell that were evaluated at the same levels, so that their means over levels can be compared."""

    family: str
    """The recipe, and what sets it apart where a recipe has several sets of test data (comparable.families)."""
    cell: ComparableCell
    noise: str
    shown: list[Decision]
    left_out: int
    """Runs at other levels, or without a decision layer."""


def panels(cells: Mapping[ComparableCell, Sequence[Decision]]) -> list[Panel]:
    """Cells and kinds of noise with at least six runs that have all numbers, at the levels that most of these have."""
    made = []
    named = {
        run.group: name
        for name, runs in families(one.run for mine in cells.values() for one in mine).items()
        for run in runs
    }
    for cell, mine in cells.items():
        for noise in dict.fromkeys(trained_noise(one.run) for one in mine):
            found = [one for one in mine if trained_noise(one.run) == noise]
            complete = [one for one in found if one.is_complete]
            usual = [levels for levels, _ in Counter(one.levels for one in complete).most_common(1)]
            shown = [one for one in complete if one.levels in usual]
            if len(shown) >= FEWEST_RUNS:
                made.append(Panel(named[shown[0].run.group], cell, noise, shown, len(found) - len(shown)))
    return made


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation of a measure with the mean OOD accuracy over the runs of a panel; nan if undefined."""

    runs: int
    over_all: float
    runs_within: int
    """Runs of objectives with at least two runs."""
    within: float
    """After the mean of the run's objective is subtracted from both."""
    other_fixed: float
    """The partial correlation, with the other measure held fixed."""


def correlate(panel: Panel, measure: str) -> Correlation:
    """The correlations of one of `MEASURES` with robustness."""
    shown = panel.shown
    (other,) = set(MEASURES) - {measure}
    x, z = (np.array([one.measure(name) for one in shown]) for name in (measure, other))
    y = np.array([one.ood_mean for one in shown])
    groups = [one.run.objective for one in shown]
    inside = np.array([groups.count(name) > 1 for name in groups])
    within = spearman(_demeaned(x, groups)[inside], _demeaned(y, groups)[inside])
    return Correlation(len(shown), spearman(x, y), int(inside.sum()), within, _partial(x, y, z))


def correlations(found: Sequence[Panel]) -> pd.DataFrame:
    """decision_correlations.csv: a row for each panel and measure."""
    rows: list[dict[str, Any]] = []
    for panel in found:
        for measure in MEASURES:
            one = correlate(panel, measure)
            rows.append(
                {
                    "recipe": panel.family,
                    "layers": panel.cell.layers,
                    "gamma_train": panel.cell.gamma_train,
                    "perturbation": panel.noise,
                    "measure": measure,
                    "runs": one.runs,
                    "correlation": one.over_all,
                    "runs_within": one.runs_within,
                    "within_objectives": one.within,
                    "other_fixed": one.other_fixed,
                }
            )
    return pd.DataFrame(rows, columns=CORRELATIONS)


def spearman(x: Sequence[float] | np.ndarray[Any, Any], y: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """The correlation of ranks, mean ranks for ties; nan for fewer than six values, or if all of one are equal."""
    if len(x) < FEWEST_RUNS:
        return math.nan
    # Values that differ by rounding alone, as demeaned ones do, are ties.
    ranks = [pd.Series(np.round(values, 12)).rank().to_numpy() for values in (x, y)]
    if any(np.ptp(values) == 0 for values in ranks):
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def signed(correlation: float) -> str:
    """A correlation in figures and tables: `−0.42`, or a dash if it is undefined."""
    return "–" if math.isnan(correlation) else f"{correlation:+.2f}".replace("-", "−")


def _demeaned(values: np.ndarray[Any, Any], groups: Sequence[str]) -> np.ndarray[Any, Any]:
    of_groups = pd.Series(values).groupby(pd.Series(groups))
    return values - of_groups.transform("mean").to_numpy()


def _partial(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], z: np.ndarray[Any, Any]) -> float:
    """(ρ_xy − ρ_xz·ρ_yz) / √((1 − ρ_xz²)(1 − ρ_yz²)); nan if x or y is a function of z."""
    xy, xz, yz = spearman(x, y), spearman(x, z), spearman(y, z)
    left = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / math.sqrt(left) if left > 1e-12 else math.nan
