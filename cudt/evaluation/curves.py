"""Curves in ood.csv: the names of their rows, and the area under a curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd


def area_under_curve(gammas: Sequence[float], values: Sequence[float]) -> float:
    """∫ metric dγ by the trapezoid rule; NaN for a single level. Only areas over the same range can
    be compared.
    """
    if len(gammas) < 2:
        return float("nan")
    return float(np.trapezoid(np.asarray(values, dtype=float), np.asarray(gammas, dtype=float)))


def metric_and_ends(metric: str) -> list[str]:
    """The names in ood.csv of a metric and of the ends of its interval."""
    return [metric, f"{metric}_low", f"{metric}_high"]


def input_metric(metric: str) -> str:
    """The name in ood.csv of a metric of the noisy input itself, for tasks where it is an
    answer.
    """
    return f"input_{metric}"


def further_metrics(ood: pd.DataFrame, metric: str) -> list[str]:
    """The metrics in ood.csv other than the main metric, the loss and the ends of intervals."""
    names = ood["metric"].unique()
    known = {metric, "loss"}
    return [name for name in names if name not in known and not name.endswith(("_low", "_high"))]
