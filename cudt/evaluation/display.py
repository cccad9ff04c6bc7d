"""The results of an evaluation as one table for the terminal."""

from __future__ import annotations

import numpy as np
import pandas as pd
from rich.table import Table

from cudt.config.levels import scale_of
from cudt.evaluation import exits
from cudt.evaluation.tables import area_under_curve, over_seeds, psnr
from cudt.runs.info import MetricInfo
from cudt.runs.run import Run
from cudt.utils.numbers import short_number


def result_table(run: Run, *, with_exits: bool = False) -> Table:
    """One row for each noise level, averaged over the noise seeds: metric with interval, loss, the
    share of layers that lower the loss, and the layer with the lowest one.
    """
    info = run.finished_info()
    metric, is_root = info.metric, info.metric.of_mean == "root"
    ood = run.rows("ood").groupby(["noise", "gamma"]).mean(numeric_only=True)
    layers = over_seeds(run.rows("layers"), is_root=is_root)
    left = exits.exit_table(run).set_index(["noise", "gamma"]) if with_exits else pd.DataFrame()
    table = Table(box=None, padding=(0, 2, 0, 0), title=run.label, title_justify="left")
    headings = ["level", metric.name, "95 % interval"]
    headings += ["PSNR", "input"] if metric.name == "RMSE" else []
    headings += ["loss", "layers that lower it", "best layer"]
    headings += ["early exit", "mean layers", "FLOPs"] if with_exits else []
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "level" else "right")
    for (kind, level), row in ood.iterrows():
        mine = layers[(layers["noise"] == kind) & (layers["gamma"] == level)].sort_values("layer")
        losses = np.array([info.reference, *mine["loss"]])
        ends = [short_number(row[end]) for end in ("low", "high") if not pd.isna(row[end])]
        cells = [f"{kind} {scale_of(kind).symbol} = {level:g}", short_number(row["value"])]
        cells.append(" to ".join(ends))
        if metric.name == "RMSE":
            cells += [f"{psnr(row['value']):.2f}", short_number(row["input"])]
        lower = np.diff(losses) < 0
        cells += [short_number(losses[-1]), f"{lower.mean():.0%}", str(losses[1:].argmin() + 1)]
        if with_exits:
            early = left.loc[(kind, level)]
            cells += [f"{early['accuracy']:.4f}", f"{early['mean_depth']:.2f}"]
            cells.append(f"{early['flops']:.0%}")
        table.add_row(*cells)
    table.caption, table.caption_justify = "; ".join(_summaries(ood, metric)), "left"
    return table


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
            lines.append(f"{kind}: mean {short_number(np.mean(values))} of {len(levels)} levels")
    return lines
