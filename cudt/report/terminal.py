"""The summary of a report in the terminal."""

from __future__ import annotations

import pandas as pd
from rich.table import Table

from cudt.utils.numbers import short_number

#: Rows shown; table.csv has all.
_MOST_ROWS = 30


def summary_table(summary: pd.DataFrame) -> Table:
    """The part of table.csv that fits a terminal: AUC for metrics to maximise, the mean over levels
    for others.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), caption=_caption(summary), caption_justify="left")
    # Names may wrap but stay readable; numbers never wrap.
    words = {"recipe": 10, "objective": 11}
    for heading in (
        "recipe",
        "objective",
        "noise",
        "feasible",
        "monotone",
        "ID",
        "OOD",
        _over_grid(summary),
    ):
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
        numbers = ("" if pd.isna(row[name]) else short_number(row[name]) for name in wanted)
        table.add_row(row["recipe"], row["label"], row["perturbation"], *shares, *numbers)
    return table


def _over_grid(summary: pd.DataFrame) -> str:
    """The heading of the last column: AUC, mean, or both if rows differ."""
    return "/".join(
        dict.fromkeys("AUC" if higher else "mean" for higher in summary["higher_is_better"])
    )


def _caption(summary: pd.DataFrame) -> str:
    ranges = ", ".join(dict.fromkeys(text for text in summary["range"] if text))
    metrics = ", ".join(dict.fromkeys(summary["metric"]))
    over = f"; {_over_grid(summary)} over {ranges}"
    rest = (
        f"the first {_MOST_ROWS} of {len(summary)} rows; table.csv has the rest\n"
        if len(summary) > _MOST_ROWS
        else ""
    )
    return f"{rest}mean {metrics} over levels up to γ_train (ID) and above (OOD)" + (
        over if ranges else ""
    )
