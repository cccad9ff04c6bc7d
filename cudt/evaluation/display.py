"""The results of an evaluation on a terminal."""

from __future__ import annotations

import pandas as pd
from rich.table import Table

from cudt.evaluation.curves import area_under_curve, further_metrics, metric_and_ends
from cudt.noise.base import distribution, scale_of
from cudt.runs.run import Run


def curve_table(run: Run) -> Table:
    """The metric and loss of one run at each γ, the noise seeds averaged."""
    info, ood = run.finished_info(), run.read_table("ood")
    metric = info.metric.name
    _, *ends = metric_and_ends(metric)
    further = further_metrics(ood, metric)
    table = Table(box=None, padding=(0, 2, 0, 0), title=run.path.name, title_justify="left")
    for column in ("noise", "level", "", metric, "95 % interval", *further, "loss"):
        table.add_column(column, justify="left" if column in ("noise", "") else "right")
    for kind, rows in ood.groupby("perturbation"):
        values = rows.pivot_table(index="gamma", columns="metric", values="value", aggfunc="mean")
        # Earlier versions evaluated without intervals.
        values = values.reindex(columns=[metric, *ends, *further, "loss"])
        symbol = scale_of(str(kind)).symbol
        for gamma, row in values.iterrows():
            level = float(str(gamma))
            where = distribution(str(kind), level, info.gamma_train)
            interval = "" if row[ends].isna().any() else " to ".join(f"{row[end]:.4f}" for end in ends)
            numbers = (
                f"{row[metric]:.4f}",
                interval,
                *(f"{row[name]:.2f}" for name in further),
                short_number(row["loss"]),
            )
            table.add_row(str(kind), f"{symbol} = {level:g}", where, *numbers)
        if len(values) > 1:
            table.add_row(str(kind), *_over_levels(values[metric], symbol, info.metric.higher_is_better))
    return table


def _over_levels(curve: pd.Series[float], symbol: str, higher_is_better: bool) -> tuple[str, str, str, str]:
    """One number for a curve, as the paper prints it: the area under an accuracy, the mean of an error."""
    levels = curve.index.tolist()
    if not higher_is_better:
        return "mean", "", f"{curve.mean():.4f}", f"of {len(levels)} levels"
    area = area_under_curve(levels, curve.tolist())
    return "AUC", "", f"{area:.4f}", f"over {symbol} {min(levels):g} to {max(levels):g}"


def ratio_table(run: Run) -> Table:
    """How single examples descend over all layers but the first, at each level; no rows for a model of one layer."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("noise", "level", "mean f_l / f_l−1", "median", "steps that lower the loss"):
        table.add_column(column, justify="left" if column == "noise" else "right")
    ratios = run.read_table("ratios")
    over_layers = ratios[ratios["layer"] == 0]
    for keys, rows in over_layers.groupby(["perturbation", "gamma"]):
        kind, gamma = keys
        values = dict(zip(rows["name"], rows["value"], strict=True))
        numbers = (f"{values['mean']:.3f}", f"{values['median']:.3f}", f"{values['decreasing']:.1%}")
        table.add_row(str(kind), f"{scale_of(kind).symbol} = {gamma:g}", *numbers)
    return table


def short_number(value: float) -> str:
    """Four digits behind the point, or fewer for numbers that are large."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 1000 else f"{value:.4g}"
