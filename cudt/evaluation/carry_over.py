"""How far descent carries over: the constraints on test data at each noise level, and what the
theory makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from cudt.data.splits import Split
from cudt.evaluation.stored import MeasuredExamples
from cudt.method import constraints, theory
from cudt.method.constraints import allowed_losses
from cudt.method.objectives import objective_class
from cudt.models.layer_losses import Measurement
from cudt.runs.info import FinishedInfo
from cudt.runs.run import Run
from cudt.runs.tables import TABLES

#: The rows of descent.csv with the layer losses that ζ is computed from, by split.
SEEN_LOSSES: dict[Split, str] = {"train": "train_loss", "validation": "validation_loss"}
#: The verdicts of a constraint that is kept.
KEPT = ("met", "borderline")


def constraint_rows(
    run: Run, kind: str, measured: Iterable[tuple[float, MeasuredExamples]]
) -> pd.DataFrame:
    """The verdict on each layer's constraint at each level; no rows for runs without recorded
    rates.
    """
    info = run.finished_info()
    rows = []
    for gamma, level in measured if info.rates else ():
        for one in _judged(run, info, level):
            numbers = (one.loss, one.allowed, one.violation, one.standard_error)
            rows.append((kind, gamma, one.layer, *numbers, one.verdict))
    return pd.DataFrame(rows, columns=TABLES["constraints"])


def _judged(
    run: Run, info: FinishedInfo, measured: MeasuredExamples
) -> list[constraints.LayerVerdict]:
    """The verdicts with the slack that the run was given; only "relaxed" depends on it."""
    form, rates = run.recipe.settings.descent.form, info.rates or []
    # The slack of weights that are not the run's own is not recorded.
    known = [0.0 if run.other_weights else verdict.slack for verdict in info.verdicts]
    slack = torch.tensor(known, dtype=torch.double)
    if form == "log":
        # A slack of the log form is a factor on what is allowed, which differs between levels.
        allowed = allowed_losses(measured.layer_losses, info.reference, rates, form)
        slack *= allowed / torch.tensor([verdict.allowed for verdict in info.verdicts])
    blocks = [measured] if isinstance(measured, Measurement) else list(measured.blocks())
    whole = Measurement.joined(blocks)
    return constraints.judge(whole.losses, whole.weights, info.reference, rates, slack, form)


def has_promise(run: Run) -> bool:
    """Whether the theory promises anything: training asked for the constraints and kept them, on
    validation data.

    Weights that are not the run's own have verdicts only on test data, at the level of training.
    """
    info, noise = run.finished_info(), run.recipe.settings.noise
    is_kept = info.feasible
    if run.other_weights:
        table = run.read_table("constraints")
        rows = table[(table["perturbation"] == noise.kind) & (table["gamma"] == noise.gamma_train)]
        is_kept = bool(rows["verdict"].isin(KEPT).all())
    return objective_class(info.objective).is_constrained and is_kept


def spaced(n: int, count: int) -> list[int]:
    """At most `count` of the indices 0 … n − 1, evenly spaced: data may be sorted, by label for
    example.
    """
    return [int(index) for index in np.linspace(0, n - 1, min(n, count)).round()]


def seen_losses(run: Run) -> dict[Split, list[float]]:
    """f_1 … f_L on training and on validation data, as descent.csv has them; empty if they were not
    measured yet.
    """
    table = run.read_table("descent")
    named = {
        split: table[table["name"] == name].sort_values("layer")
        for split, name in SEEN_LOSSES.items()
    }
    found = {split: rows["value"].tolist() for split, rows in named.items()}
    return found if all(found.values()) else {}


def summary_rows(run: Run, seen: dict[Split, list[float]]) -> pd.DataFrame:
    """descent.csv: every level of constraints.csv in numbers, given the layer losses on training
    and validation data.

    Layer 0 is the whole model. The shift is measured from the noise that the run was trained with.
    """
    info, noise, table = (
        run.finished_info(),
        run.recipe.settings.noise,
        run.read_table("constraints"),
    )
    by_level = {
        (str(kind), float(str(gamma))): rows
        for (kind, gamma), rows in table.groupby(["perturbation", "gamma"])
    }
    trained = by_level[noise.kind, noise.gamma_train]["loss"].tolist()
    rows = [
        (noise.kind, noise.gamma_train, layer, SEEN_LOSSES[split], loss)
        for split, losses in seen.items()
        for layer, loss in enumerate(losses, 1)
    ]
    zeta = theory.estimation_gap(*seen.values())
    for level, at_level in by_level.items():
        losses = at_level.sort_values("layer")["loss"].tolist()
        numbers = {**_measured(at_level), **_theory(run, losses, trained, zeta)}
        rows += [(*level, 0, name, value) for name, value in numbers.items()]
        achieved = enumerate(theory.achieved_rates(losses, info.reference), 1)
        rows += [(*level, layer, "rate", rate) for layer, rate in achieved]
    return pd.DataFrame(rows, columns=TABLES["descent"])


def _measured(rows: pd.DataFrame) -> dict[str, float]:
    """How many constraints are kept at one level, and max_l g_l, which the theory says is at most ζ
    + C·τ.
    """
    is_kept = rows["verdict"].isin(KEPT)
    share = {"kept": float(is_kept.sum()), "kept_share": float(is_kept.mean())}
    return {**share, "largest_violation": float(rows["violation"].max())}


def _theory(run: Run, losses: list[float], trained: list[float], zeta: float) -> dict[str, float]:
    """The quantities of method/theory.py at one level."""
    info, form = run.finished_info(), run.recipe.settings.descent.form
    rates, shift = info.rates or [], theory.distribution_shift(losses, trained)
    return {
        "best_layer": float(losses.index(min(losses)) + 1),
        "best_loss": min(losses),
        "gap": losses[-1] - min(losses),
        "rate": theory.mean_rate(losses, info.reference),
        "zeta": zeta,
        "shift": shift,
        "bound": theory.limit_bound(rates, zeta, shift, form),
        "bound_at_depth": theory.depth_bound(rates, info.reference, zeta, shift, form),
    }
