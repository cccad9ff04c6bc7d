"""The effective weights w_l that the constraints gave to the layers' losses, from history.csv.

w_l = ∂J/∂f_l is how much an update lowers the loss of layer l. Where it is negative, the update raises that loss: the
cheap way to meet the next layer's constraint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from cudt.report import objectives
from cudt.report.collect import ReadRun
from cudt.utils.errors import UserError


def logged_weights(run: ReadRun) -> pd.DataFrame:
    """w_l of every logged update: a row for each update's step, a column for each layer.

    Empty without constraints, for runs of versions that did not log them, and if history.csv is damaged.
    """
    if not objectives.is_constrained(run.objective):
        return pd.DataFrame()
    try:
        history = run.run.read_table("history")
    except (UserError, ValueError):
        # The page's charts read the same file, and report the damage.
        return pd.DataFrame()
    rows = history[(history["name"] == "weight") & (history["split"] == "train")]
    return rows.pivot(index=["epoch", "step"], columns="layer", values="value")


def at_epoch(weights: pd.DataFrame, epoch: int) -> dict[int, float]:
    """w_l by layer at the last logged update of an epoch; of an earlier one where the epoch logged none."""
    until = weights[weights.index.get_level_values("epoch") <= epoch]
    return {} if until.empty else {int(str(layer)): float(value) for layer, value in until.iloc[-1].items()}


def negative_shares(weights: pd.DataFrame) -> dict[int, float]:
    """The share of logged updates in which a layer's weight is negative, by layer."""
    return {int(str(layer)): float(share) for layer, share in (weights < 0).mean().items()}


def any_negative(weights: pd.DataFrame) -> float:
    """The share of logged updates in which some layer's weight is negative."""
    return float((weights < 0).any(axis=1).mean())


def own_weights(run: ReadRun) -> dict[int, float]:
    """w_l by layer at the epoch whose weights are the run's own; empty without logged weights."""
    logged = logged_weights(run)
    return {} if logged.empty else at_epoch(logged, run.info.best.epoch)


def means(found: Iterable[dict[int, float]]) -> dict[int, float]:
    """The mean over runs of a number by layer."""
    return pd.DataFrame([*found]).mean().to_dict()


def with_weights(runs: Sequence[ReadRun]) -> dict[int, pd.DataFrame]:
    """The logged weights of each run that has some, by seed."""
    found = {run.seed: logged_weights(run) for run in runs}
    return {seed: weights for seed, weights in found.items() if not weights.empty}
