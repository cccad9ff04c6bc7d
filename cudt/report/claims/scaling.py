"""Depth and size: whether more layers, and larger models, gain more from constraints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from cudt.evaluation import intervals
from cudt.report.claims.base import (
    Claim,
    Evidence,
    Interval,
    Outcome,
    Runs,
    by_seed,
    mean_metric,
    over_seeds,
    sign_of,
    too_few,
)
from cudt.report.collect import ReadRun
from cudt.report.comparable import CONSTRAINED, Pair
from cudt.report.compare import criterion

_DEPTH = "model.layers"
_FROM_WORST: tuple[Outcome, ...] = ("not tested", "against", "unclear", "for")


def depth(runs: Runs) -> list[Evidence]:
    """What a layer more adds OOD, by the slope over depths of each seed: more than nothing, and than in a baseline."""
    found: dict[tuple[str, ...], dict[str, list[dict[int, float]]]] = {}
    first: dict[tuple[str, ...], ReadRun] = {}
    for noise, mine in _series(runs.fresh):
        run, slopes = mine[0], _slopes(mine, noise)
        if slopes:
            key = (run.recipe, noise, f"{run.gamma_train:g}", run.run.recipe.settings.task.model_dump_json())
            first.setdefault(key, run)
            found.setdefault(key, {}).setdefault(run.objective, []).append(slopes)
    made = []
    for where, by_objective in found.items():
        for other in sorted(set(by_objective) - {CONSTRAINED}):
            for ours, theirs in itertools.product(by_objective.get(CONSTRAINED, []), by_objective[other]):
                made.append(_compared_slopes(first[where], where[1], other, ours, theirs))
    return made


def _series(runs: Sequence[ReadRun]) -> list[tuple[str, list[ReadRun]]]:
    """Runs that differ in seed and depth only, for each kind of noise."""
    found: dict[tuple[object, ...], list[ReadRun]] = {}
    for run in runs:
        others = tuple(sorted((key, str(value)) for key, value in run.settings.items() if key != _DEPTH))
        for noise in run.curves:
            found.setdefault((run.recipe, run.objective, noise, others), []).append(run)
    return [(str(key[2]), mine) for key, mine in found.items()]


def _slopes(runs: Sequence[ReadRun], noise: str) -> dict[int, float]:
    """What a layer more adds to the mean OOD metric, by least squares, for each seed that has every depth."""
    depths = sorted({run.n_layers for run in runs})
    slopes = {}
    for seed in sorted({run.seed for run in runs}):
        values = {run.n_layers: mean_metric(run, noise, "OOD") for run in runs if run.seed == seed}
        if len(depths) > 1 and sorted(values) == depths:
            slopes[seed] = sign_of(runs[0]) * float(np.polyfit(depths, [values[one] for one in depths], 1)[0])
    return slopes


def _compared_slopes(
    run: ReadRun, noise: str, other: str, ours: dict[int, float], theirs: dict[int, float]
) -> Evidence:
    """The worse of the claim's two parts: the difference of the slopes, or the constrained slope alone."""
    seeds = sorted(set(ours) & set(theirs))
    mean_ours, mean_theirs = (float(np.mean([*slopes.values()])) for slopes in (ours, theirs))
    setting = f"{run.recipe}, γ_train = {run.gamma_train:g}, {noise}"
    gain = f"gain in mean {run.metric} OOD per layer"
    parts = {
        f"{gain}, constrained and {other}": [ours[seed] - theirs[seed] for seed in seeds],
        f"{gain}, constrained alone": [ours[seed] for seed in seeds],
    }
    made = [
        Evidence(setting, quantity, over_seeds(values), other, mean_ours, mean_theirs, lacking=too_few(len(seeds)))
        for quantity, values in parts.items()
    ]
    return min(made, key=lambda one: _FROM_WORST.index(one.outcome))


# ---------------------------------------------------------------- size


def size(runs: Runs) -> list[Evidence]:
    """The gain of the deepest whole pretrained model on a task minus that of the shallowest, with Welch's interval."""
    by_task: dict[tuple[str, ...], list[Pair]] = {}
    for pair in runs.pairs:
        first = pair.ours[0]
        # Cuts of one model are compared by `depth`.
        if all(run.pretrained and not run.is_cut for run in (first, pair.baseline[0])):
            task = first.run.recipe.settings.task.model_dump_json()
            shared = (task, first.metric, first.run.weights, f"{first.gamma_train:g}")
            by_task.setdefault((*shared, pair.noise, pair.baseline[0].objective), []).append(pair)
    made = []
    for mine in by_task.values():
        depths = {pair.ours[0].n_layers for pair in mine}
        if len(depths) > 1:
            low, high = (
                _best([pair for pair in mine if pair.ours[0].n_layers == n]) for n in (min(depths), max(depths))
            )
            made.append(_compared_gains(high, low))
    return made


def _best(pairs: Sequence[Pair]) -> Pair:
    """The pair of the best variants on validation data, as in the tables: of constrained, then of the baseline."""
    rank = criterion([run for pair in pairs for run in (*pair.ours, *pair.baseline)])
    return min(pairs, key=lambda pair: [float(np.mean([*map(rank, side)])) for side in (pair.ours, pair.baseline)])


def _gains(pair: Pair) -> list[float]:
    """What constraints add to the mean OOD metric, for each seed that both sides have."""
    measure = partial(mean_metric, noise=pair.noise, where="OOD")
    ours, theirs = (by_seed(side, measure) for side in (pair.ours, pair.baseline))
    return [sign_of(pair.ours[0]) * (ours[seed] - theirs[seed]) for seed in sorted(set(ours) & set(theirs))]


def _compared_gains(high: Pair, low: Pair) -> Evidence:
    each = [_gains(pair) for pair in (high, low)]
    seeds = min(map(len, each))
    means = [float(np.mean(one)) if one else math.nan for one in each]
    reach = math.nan
    if seeds > 1:
        reach = float(intervals.student([(np.var(one, ddof=1) / len(one), len(one) - 1) for one in each]))
    effect = means[0] - means[1]
    names = [f"{pair.ours[0].recipe} (L = {pair.ours[0].n_layers})" for pair in (high, low)]
    return Evidence(
        f"{names[0]} and {names[1]}, γ_train = {high.gamma_train:g}, {high.noise}",
        f"gain in mean {high.ours[0].metric} OOD, of the deeper and of the shallower model",
        Interval(effect, effect - reach, effect + reach, seeds),
        high.baseline[0].objective,
        means[0],
        means[1],
        lacking=too_few(seeds),
    )


ORDER = 30
CLAIMS = [
    Claim(
        "depth",
        "More layers make constrained models more robust, and help unconstrained ones less",
        lambda: "a figure: DUST on UCSD with 3, 5 and 7 layers, γ_train = 0",
        depth,
        "cudt sweep --search depth, then cudt eval-ood on its runs",
    ),
    Claim(
        "size",
        "Larger pretrained models gain more from constraints",
        lambda: "accuracy AUC on IMDb, mean over γ_train: +0.101 for RoBERTa, +0.021 for DistilBERT",
        size,
        "cudt experiment imdb-distilbert and cudt experiment imdb-roberta, each with "
        "--seeds 0 1 2 --objectives constrained erm supervised",
    ),
]
