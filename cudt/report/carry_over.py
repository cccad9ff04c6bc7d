"""How far descent carries over to noise: the numbers of descent.csv, over the seeds of a group.

descent.csv counts the constraints that a run keeps by the run's own α, form and f_0. Objectives are
compared by the constraints of one run: where another run was judged by others, its losses are
judged again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch

from cudt.method.constraints import TOLERANCE, allowed_losses
from cudt.report.collect import ReadRun
from cudt.report.comparable import CONSTRAINED
from cudt.report.groups import Group


def has_descent(groups: Sequence[Group], kind: str) -> list[Group]:
    """The groups whose runs all have a summary of their constraints under a kind of noise."""
    return [
        group
        for group in groups
        if all(kind in set(run.descent["perturbation"]) for run in group.runs)
    ]


def by_level(runs: Sequence[ReadRun], kind: str, name: str) -> pd.DataFrame:
    """A number about the whole model: `mean` and `std` over the runs, indexed by the levels that
    all of them have.
    """
    found = _rows(runs, kind, name).groupby("gamma")["value"].agg(["mean", "std", "size"])
    return found[found["size"] == len(runs)][["mean", "std"]]


def best_layers(runs: Sequence[ReadRun], kind: str) -> pd.DataFrame:
    """The layer with the lowest loss: `median` over the runs (the lower of two), with `least` and
    `most`, by level.
    """
    values = _rows(runs, kind, "best_layer").groupby("gamma")["value"]
    ends = values.agg(least="min", most="max", size="size")
    found = ends.assign(median=values.quantile(0.5, interpolation="lower"))
    return found[found["size"] == len(runs)][["median", "least", "most"]]


def _rows(runs: Sequence[ReadRun], kind: str, name: str) -> pd.DataFrame:
    rows = pd.concat([run.descent for run in runs])
    return rows[(rows["layer"] == 0) & (rows["perturbation"] == kind) & (rows["name"] == name)]


def kept_by_level(group: Group, shown: Sequence[Group], kind: str) -> pd.DataFrame:
    """`by_level` of the number of constraints kept, by the constraints of the constrained group
    that is shown.
    """
    judges = [
        run for one in shown if one.objective == CONSTRAINED for run in one.runs
    ] or group.runs
    of_runs = [pd.Series(kept(run, judge_of(run, judges), kind), dtype=float) for run in group.runs]
    found = pd.concat(of_runs).groupby(level=0).agg(["mean", "std", "size"])
    return found[found["size"] == len(group.runs)][["mean", "std"]]


def judge_of(run: ReadRun, judges: Sequence[ReadRun]) -> ReadRun:
    """The run whose constraints another is judged by: that of the same seed, or the first."""
    return next((judge for judge in judges if judge.seed == run.seed), judges[0])


def kept(run: ReadRun, judge: ReadRun, kind: str) -> dict[float, float]:
    """The number of constraints of another run, `judge`, that a run keeps at each level.

    A violation within two standard errors counts as kept, as in constraints.csv. The standard error
    is that of the run's own constraint: that of another needs the losses of every example.
    """
    if _constraints(run) == _constraints(judge):
        return run.descent_numbers.get((kind, "kept"), {})
    rates, reference, form = (
        judge.info.rates,
        judge.reference,
        judge.run.recipe.settings.descent.form,
    )
    if not rates or not run.has_table("constraints"):
        return {}
    table, counts = run.run.read_table("constraints"), {}
    for gamma, rows in table[table["perturbation"] == kind].groupby("gamma"):
        rows = rows.sort_values("layer")
        losses = rows["loss"].to_numpy()
        allowed = allowed_losses(torch.from_numpy(losses), reference, rates, form).numpy()
        violations = losses - allowed
        is_kept = violations <= TOLERANCE * rows["standard_error"].to_numpy()
        counts[float(str(gamma))] = float(is_kept.sum())
    return counts


def _constraints(run: ReadRun) -> tuple[object, ...]:
    return run.info.rates, run.reference, run.run.recipe.settings.descent.form
