"""Reading a curve off ood.csv: what its rows are called, and the area under it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd


def area_under_curve(gammas: Sequence[float], values: Sequence[float]) -> float:
    """∫ metric dγ by the trapezoid rule over the grid; means nothing without the range, nor for a single level."""
    if len(gammas) < 2:
        return float("nan")
    return float(np.trapezoid(np.asarray(values, dtype=float), np.asarray(gammas, dtype=float)))


def metric_and_ends(metric: str) -> list[str]:
    """What ood.csv calls a metric and the ends of its interval."""
    return [metric, f"{metric}_low", f"{metric}_high"]


def further_metrics(ood: pd.DataFrame, metric: str) -> list[str]:
    """What ood.csv has beside the metric, the loss and the ends of intervals."""
    names = ood["metric"].unique()
    known = {metric, "loss"}
    return [name for name in names if name not in known and not name.endswith(("_low", "_high"))]
