"""The same numbers on a terminal."""

from __future__ import annotations

import pandas as pd
from rich.table import Table

from cudt.levels import scale_of
from cudt.report.tables import area_under_curve, metric_and_ends, place
from cudt.runs import Run

#: Rows of a summary; more scroll away, and are in table.csv.
_MOST_ROWS = 30


def curve_table(run: Run) -> Table:
    """The metric and loss of one run at each γ, the noise seeds averaged."""
    info, ood = run.info(), run.read_table("ood")
    metric = info["metric"]["name"]
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
            where = place(str(kind), level, info["gamma_train"])
            interval = "" if row[ends].isna().any() else " to ".join(f"{row[end]:.4f}" for end in ends)
            numbers = (f"{row[metric]:.4f}", interval, *(f"{row[name]:.2f}" for name in further), _short(row["loss"]))
            table.add_row(str(kind), f"{symbol} = {level:g}", where, *numbers)
        if len(values) > 1:
            table.add_row(str(kind), *_over_levels(values[metric], symbol, info["metric"]["higher_is_better"]))
    return table


def _over_levels(curve: pd.Series[float], symbol: str, higher_is_better: bool) -> tuple[str, str, str, str]:
    """One number for a curve, as the paper prints it: the area under an accuracy, the mean of an error."""
    levels = curve.index.tolist()
    if not higher_is_better:
        return "mean", "", f"{curve.mean():.4f}", f"of {len(levels)} levels"
    area = area_under_curve(levels, curve.tolist())
    return "AUC", "", f"{area:.4f}", f"over {symbol} {min(levels):g} to {max(levels):g}"


def further_metrics(ood: pd.DataFrame, metric: str) -> list[str]:
    """What ood.csv has beside the metric, the loss and the ends of intervals."""
    names = ood["metric"].unique()
    known = {metric, "loss"}
    return [name for name in names if name not in known and not name.endswith(("_low", "_high"))]


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


def summary_table(summary: pd.DataFrame) -> Table:
    """table.csv, as much of it as fits a terminal: the area under curves that should be high, of others the mean."""
    table = Table(box=None, padding=(0, 1, 0, 0), caption=_caption(summary), caption_justify="left")
    # Words may break, numbers not; a name stays one that can be read.
    words = {"recipe": 10, "objective": 11}
    for heading in ("recipe", "objective", "noise", "feasible", "monotone", "ID", "OOD", _over_grid(summary)):
        table.add_column(
            heading,
            justify="left" if heading in (*words, "noise") else "right",
            no_wrap=heading not in words,
            min_width=words.get(heading),
            overflow="fold",
        )
    for row in summary[:_MOST_ROWS].to_dict("records"):
        shares = (f"{row[name]} of {row['seeds']}" for name in ("feasible", "monotone"))
        wanted = ("id_mean", "ood_mean", "auc" if row["higher_is_better"] else "grid_mean")
        numbers = ("" if pd.isna(row[name]) else _short(row[name]) for name in wanted)
        table.add_row(row["recipe"], row["label"], row["perturbation"], *shares, *numbers)
    return table


def _short(value: float) -> str:
    """Four digits behind the point, or fewer for numbers that are large."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 1000 else f"{value:.4g}"


def _over_grid(summary: pd.DataFrame) -> str:
    """What the last column has: one name, or both where a row has the one and a row the other."""
    return "/".join(dict.fromkeys("AUC" if higher else "mean" for higher in summary["higher_is_better"]))


def _caption(summary: pd.DataFrame) -> str:
    ranges = ", ".join(dict.fromkeys(text for text in summary["range"] if text))
    metrics = ", ".join(dict.fromkeys(summary["metric"]))
    over = f"; {_over_grid(summary)} over {ranges}"
    rest = (
        f"the first {_MOST_ROWS} of {len(summary)} rows; table.csv has the rest\n" if len(summary) > _MOST_ROWS else ""
    )
    return f"{rest}mean {metrics} over levels up to γ_train (ID) and above (OOD)" + (over if ranges else "")
