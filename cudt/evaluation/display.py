"""The results of an evaluation as one table for the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from cudt.config.levels import scale_of
from cudt.evaluation import exits
from cudt.evaluation.tables import area_under_curve, over_seeds, psnr
from cudt.runs.info import MetricInfo
from cudt.runs.run import Run
from cudt.utils.text import short_number

_MEANING = "lower: layers that lower the loss · best: the layer with the lowest loss"
_OF_EXITS = "exit: with early exit, the accuracy, mean layers and share of the FLOPs"


def result_table(run: Run, *, with_exits: bool = False) -> Table:
    """One row for each noise level, averaged over the noise seeds: metric with interval, loss, the
    share of layers that lower the loss, and the layer with the lowest one.
    """
    info = run.finished_info()
    metric, is_rmse = info.metric, info.metric.name == "RMSE"
    ood = run.rows("ood").groupby(["noise", "gamma"]).mean(numeric_only=True)
    layers = over_seeds(run.rows("layers"), is_root=metric.of_mean == "root")
    left = exits.exit_table(run).set_index(["noise", "gamma"]) if with_exits else pd.DataFrame()
    headings = ["noise", "level", metric.name.replace("_", "\n"), "95 % interval"]
    headings += ["PSNR", "input"] if is_rmse else []
    headings += ["loss", "lower", "best", *(["exit", "layers", "FLOPs"] if with_exits else [])]
    kinds = [*dict.fromkeys(ood.index.get_level_values("noise"))]
    title = f"{run.label}: {', '.join(kinds)} noise"
    table = Table(box=None, padding=(0, 1, 0, 0), title=title, title_justify="left")
    # A column of equal words would break lines at 80 columns.
    headings = headings if len(kinds) > 1 else headings[1:]
    for heading in headings:
        is_word = heading in ("noise", "level")
        table.add_column(heading, justify="left" if is_word else "right", no_wrap=True)
    for key, row in ood.iterrows():
        kind, level = _key(key)
        mine = layers[(layers["noise"] == kind) & (layers["gamma"] == level)].sort_values("layer")
        losses = np.array([info.reference, *mine["loss"]])
        ends = [short_number(row[end]) for end in ("low", "high") if not pd.isna(row[end])]
        cells = [kind, f"{scale_of(kind).symbol} = {level:g}", short_number(row["value"])]
        cells.append(" to ".join(ends))
        cells += [f"{psnr(row['value']):.2f}", short_number(row["input"])] if is_rmse else []
        lower = f"{(np.diff(losses) < 0).mean():.0%}"
        cells += [short_number(losses[-1]), lower, str(losses[1:].argmin() + 1)]
        if with_exits:
            early = left.loc[key]
            cells += [f"{early['accuracy']:.4f}", f"{early['mean_depth']:.2f}"]
            cells.append(f"{early['flops']:.0%}")
        table.add_row(*cells[-len(headings) :])
    meaning = f"{_MEANING}\n{_OF_EXITS}" if with_exits else _MEANING
    table.caption, table.caption_justify = "\n".join([*_summaries(ood, metric), meaning]), "left"
    return table


def _key(key: Any) -> tuple[str, float]:
    return str(key[0]), float(key[1])


def _summaries(ood: pd.DataFrame, metric: MetricInfo) -> list[str]:
    """One number for each curve, as in the paper: the area under an accuracy, the mean of an
    error.
    """
    lines = []
    for kind, rows in ood.groupby(level="noise"):
        levels, values = rows.index.get_level_values("gamma").tolist(), rows["value"].tolist()
        if len(levels) > 1 and metric.higher_is_better:
            area = area_under_curve(levels, values)
            lines.append(f"{kind}: AUC {area:.4f} over {min(levels):g} to {max(levels):g}")
        elif len(levels) > 1:
            lines.append(
                f"{kind}: mean {short_number(float(np.mean(values)))} of {len(levels)} levels"
            )
    return lines
