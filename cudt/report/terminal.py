"""The same numbers on a terminal."""

from __future__ import annotations

import pandas as pd
from rich.table import Table

from cudt.report.tables import area_under_curve
from cudt.runs import Run


def curve_table(run: Run) -> Table:
    """The metric and loss of one run at each γ, the noise seeds averaged."""
    info, ood = run.info(), run.read_table("ood")
    metric = info["metric"]["name"]
    table = Table(box=None, padding=(0, 2, 0, 0), title=run.path.name, title_justify="left")
    for column in ("noise", "γ", "", metric, "loss"):
        table.add_column(column, justify="left" if column in ("noise", "") else "right")
    for kind, rows in ood.groupby("perturbation"):
        values = rows.pivot_table(index="gamma", columns="metric", values="value", aggfunc="mean")
        for gamma, row in values.iterrows():
            where = "ID" if float(str(gamma)) <= info["gamma_train"] else "OOD"
            table.add_row(str(kind), f"{gamma:g}", where, f"{row[metric]:.4f}", f"{row['loss']:.4f}")
        area = area_under_curve(values.index.tolist(), values[metric].tolist())
        span = f"{values.index.min():g} to {values.index.max():g}"
        table.add_row(str(kind), span, "", f"AUC {area:.4f}", "")
    return table


def summary_table(summary: pd.DataFrame) -> Table:
    """table.csv, as much of it as fits a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), caption=_caption(summary), caption_justify="left")
    for heading in ("recipe", "objective", "noise", "feasible", "monotone", "ID", "OOD", "AUC"):
        table.add_column(
            heading,
            justify="left" if heading in ("recipe", "objective", "noise") else "right",
            no_wrap=heading != "recipe",
            overflow="fold",
        )
    for row in summary.to_dict("records"):
        shares = (f"{row[name]} of {row['seeds']}" for name in ("feasible", "monotone"))
        numbers = ("" if pd.isna(row[name]) else f"{row[name]:.4f}" for name in ("id_mean", "ood_mean", "auc"))
        table.add_row(row["recipe"], row["label"], row["perturbation"], *shares, *numbers)
    return table


def _caption(summary: pd.DataFrame) -> str:
    ranges = ", ".join(dict.fromkeys(text for text in summary["gamma_range"] if text))
    metrics = ", ".join(dict.fromkeys(summary["metric"]))
    return f"mean {metrics} over γ ≤ γ_train (ID) and above (OOD)" + (f"; AUC over γ {ranges}" if ranges else "")
