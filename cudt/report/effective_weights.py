"""The effective weights w_l that the constraints gave to the layers' losses: at the end of epochs,
and in history.csv.

w_l = ∂J/∂f_l is how much an update lowers the loss of layer l. Where it is negative, the update
raises that loss: the cheap way to meet the next layer's constraint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from cudt.config.schema import Weights
from cudt.report import objectives
from cudt.report.collect import ReadRun
from cudt.runs.dual import dual_at_end


def logged_weights(run: ReadRun) -> pd.DataFrame:
    """w_l of every logged update: a row for each update's step, a column for each layer.

    Empty without constraints, and where none were logged.
    """
    if not objectives.is_constrained(run.objective):
        return pd.DataFrame()
    history = run.run.read_table("history")
    rows = history[(history["name"] == "weight") & (history["split"] == "train")]
    return rows.pivot(index=["epoch", "step"], columns="layer", values="value")


def negative_shares(weights: pd.DataFrame) -> dict[int, float]:
    """The share of logged updates in which a layer's weight is negative, by layer."""
    return {int(str(layer)): float(share) for layer, share in (weights < 0).mean().items()}


def any_negative(weights: pd.DataFrame) -> float:
    """The share of logged updates in which some layer's weight is negative."""
    return float((weights < 0).any(axis=1).mean())


def weights_at_end(run: ReadRun, which: Weights | None = None) -> dict[int, float]:
    """w_l by layer at the end of the best or the last epoch, by default of the run's own; empty if
    not recorded.
    """
    dual = dual_at_end(run.run, which)
    return {} if dual is None else dual.weights


def means(found: Iterable[dict[int, float]]) -> dict[int, float]:
    """The mean over runs of a number by layer."""
    return pd.DataFrame([*found]).mean().to_dict()


def with_weights(runs: Sequence[ReadRun]) -> dict[int, pd.DataFrame]:
    """The logged weights of each run that has some, by seed."""
    found = {run.seed: logged_weights(run) for run in runs}
    return {seed: weights for seed, weights in found.items() if not weights.empty}
