"""C1, C2 and ratios: whether losses fall from layer to layer, at γ_train, above it, and in single examples."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from cudt.noise.base import distribution, training_level
from cudt.report.carry_over import judge_of, kept
from cudt.report.claims.base import (
    Claim,
    Evidence,
    Runs,
    clipped,
    of_every_seed,
    over_seeds,
    paired_shares,
    too_few,
    trained_noise,
)
from cudt.report.collect import ReadRun
from cudt.report.comparable import Pair

_LEVELS = {"ID": "at γ_train", "OOD": "at OOD levels"}
_LOSSES = {where: f"test losses of layers {levels}" for where, levels in _LEVELS.items()}
#: Steps of single examples that lower the loss: more than half is "most".
_MOST = 0.5


def descent(runs: Runs) -> list[Evidence]:
    """Whether every layer of every seed lowers the test loss at γ_train."""
    return [
        Evidence(
            runs.setting(group[0], trained_noise(group[0])),
            "layers that lower the test loss at γ_train (every seed)",
            of_every_seed(shares := [falling(run, "ID") for run in group]),
            ours=float(np.mean(shares)),
            # All layers, whatever rounding does to a share of 1.
            more_than=1 - 1e-9,
            is_for_every_seed=True,
            lacking=_unknown(group[0], _LOSSES["ID"]) if np.isnan(shares).any() else too_few(len(group)),
        )
        for group in runs.groups
    ]


def compared_descent(runs: Runs, *, where: str) -> list[Evidence]:
    """Layers that lower the loss: constrained minus a baseline."""
    quantity = f"layers that lower the test loss {_LEVELS[where]}"

    def measure(run: ReadRun) -> float:
        return runs.number(run, quantity, partial(falling, where=where))

    return [
        _with_lacking(paired_shares(runs, pair, quantity, measure), pair, _LOSSES[where])
        for pair in runs.pairs
        if pair.noise == trained_noise(pair.ours[0])
    ]


def _with_lacking(found: Evidence, pair: Pair, what: str) -> Evidence:
    """With the command that makes the numbers, if a run does not have them."""
    is_known = not np.isnan([found.ours, found.theirs]).any()
    return found if is_known else replace(found, lacking=_unknown(pair.ours[0], what))


def _unknown(run: ReadRun, what: str) -> str:
    return f"some runs have no {what}: run `cudt eval-ood {shlex.quote(str(run.run.path.parent))}/*`"


def falling(run: ReadRun, where: str) -> float:
    """The share of the L layers that lower the test loss: at γ_train (`ID`), or over all higher levels (`OOD`).

    The first layer is compared with f_0, as for a monotone run: layers 2 … L alone would leave out that of ERM, which
    often raises the loss.
    """
    noise, columns = trained_noise(run), ("split", "perturbation", "gamma", "layer", "loss")
    losses: dict[float, dict[int, float]] = {}
    # Without pandas, whose start-up at each of many runs takes longer than the work.
    for split, kind, level, layer, loss in zip(*(run.layers[name].tolist() for name in columns), strict=True):
        if split == "test" and kind == noise and _is_wanted(run, noise, level, where):
            losses.setdefault(level, {})[layer] = loss
    by_layer = ([run.reference, *(one[layer] for layer in sorted(one))] for one in losses.values())
    steps = [after < before for one in by_layer for before, after in pairwise(one)]
    return float(np.mean(steps)) if steps else math.nan


def _is_wanted(run: ReadRun, noise: str, level: float, where: str) -> bool:
    if where == "ID":
        return level == training_level(noise, run.gamma_train)
    return distribution(noise, level, run.gamma_train) == "OOD"


def kept_constraints(runs: Runs) -> list[Evidence]:
    """The share of constraints that test losses at OOD levels keep: constrained minus a baseline.

    Both sides are judged by the constraints of the constrained run of the same seed: α of the baseline may be another.
    """
    quantity = "constraints of the constrained runs that are kept at OOD levels"
    made = []
    for pair in runs.pairs:
        if pair.noise == trained_noise(pair.ours[0]):
            found = paired_shares(runs, pair, quantity, partial(_kept, runs, judges=pair.ours))
            made.append(_with_lacking(found, pair, "verdicts on constraints at OOD levels"))
    return made


def _kept(runs: Runs, run: ReadRun, judges: Sequence[ReadRun]) -> float:
    judge = judge_of(run, judges)
    return runs.number(run, f"kept constraints of {judge.run.path}", partial(_kept_share, judge=judge))


def _kept_share(run: ReadRun, judge: ReadRun) -> float:
    """Not a number in runs of earlier versions."""
    noise = trained_noise(run)
    counts = kept(run, judge, noise)
    shares = [n / run.n_layers for level, n in counts.items() if distribution(noise, level, run.gamma_train) == "OOD"]
    return float(np.mean(shares)) if shares else math.nan


def ratios(runs: Runs) -> list[Evidence]:
    """The share of steps of single examples that lower the loss at γ_train."""
    # Without a second layer there are no steps.
    return [_step_evidence(runs, group) for group in runs.groups if group[0].n_layers > 1]


def _step_evidence(runs: Runs, group: Sequence[ReadRun]) -> Evidence:
    quantity, first = "steps of single examples that lower the loss", group[0]
    setting = runs.setting(first, trained_noise(first))
    named = [one for run in group if "decreasing" in (one := _ratios(run))]
    shares = [one["decreasing"] for one in named]
    found = clipped(over_seeds(shares), 0, 1)
    if not shares:
        return Evidence(setting, quantity, found, lacking=_unknown(first, "ratios at γ_train"))
    mean, median = (np.mean([one[name] for one in named]) for name in ("mean", "median"))
    quantity += f" (ratios: mean {mean:.2f}, median {median:.2f})"
    return Evidence(setting, quantity, found, ours=found.effect, more_than=_MOST, lacking=too_few(len(shares)))


def _ratios(run: ReadRun) -> dict[str, float]:
    """Mean, median and decreasing share of the ratios over all layers at γ_train; empty in runs of earlier versions."""
    if not run.has_table("ratios"):
        return {}
    noise, rows = trained_noise(run), run.run.read_table("ratios")
    level = training_level(noise, run.gamma_train)
    rows = rows[(rows["perturbation"] == noise) & (rows["gamma"] == level) & (rows["layer"] == 0)]
    return dict(zip(rows["name"], rows["value"], strict=True))


_TRAIN = "cudt experiment imdb-minilm --seeds 0 1 2 --objectives constrained erm supervised"
ORDER = 10
CLAIMS = [
    Claim(
        "C1",
        "In constrained models every layer lowers the loss",
        lambda: "figures: monotone for all models but a few infeasible runs",
        descent,
        _TRAIN,
        is_compared=False,
    ),
    Claim(
        "C1 compared",
        "In unconstrained models fewer layers lower the loss",
        lambda: "a figure: RoBERTa's loss is flat until the last layers, with a spike at layer 19",
        partial(compared_descent, where="ID"),
        _TRAIN,
    ),
    Claim(
        "C2",
        "Under noise above that of training, more layers of constrained models lower the loss",
        lambda: "a bound: the violation grows by at most C·τ",
        partial(compared_descent, where="OOD"),
        _TRAIN,
    ),
    Claim(
        "C2 constraints",
        "Under noise above that of training, constrained models keep more of the constraints",
        lambda: "the same bound",
        kept_constraints,
        _TRAIN,
    ),
    Claim(
        "ratios",
        "In single examples, too, most steps from layer to layer lower the loss",
        lambda: "70.8 % of steps (ratios: mean 0.87, median 0.82; RoBERTa on IMDb, α = 0.2)",
        ratios,
        _TRAIN,
        is_compared=False,
    ),
]
