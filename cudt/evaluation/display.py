"""The results of an evaluation as tables for the terminal."""

from __future__ import annotations

import pandas as pd
from rich.table import Table

from cudt.config.levels import distribution, scale_of
from cudt.evaluation import carry_over
from cudt.evaluation.curves import area_under_curve, further_metrics, input_metric, metric_and_ends
from cudt.evaluation.exit_rules import RULES, ExitRule
from cudt.runs.run import Run
from cudt.utils.numbers import short_number


def curve_table(run: Run) -> Table:
    """The metric and the loss of one run at each noise level, averaged over the noise seeds."""
    info, ood = run.finished_info(), run.read_table("ood")
    metric = info.metric.name
    _, *ends = metric_and_ends(metric)
    further = further_metrics(ood, metric)
    noisy = input_metric(metric)
    table = Table(box=None, padding=(0, 2, 0, 0), title=run.shown_as, title_justify="left")
    # The metric of the noisy input itself; a longer heading would break lines at 80 columns.
    headings = ["input" if name == noisy else name for name in further]
    for column in ("noise", "level", "", metric, "95 % interval", *headings, "loss"):
        table.add_column(column, justify="left" if column in ("noise", "") else "right")
    for kind, rows in ood.groupby("perturbation"):
        values = rows.pivot_table(index="gamma", columns="metric", values="value", aggfunc="mean")
        # A single test clip has no interval.
        values = values.reindex(columns=[metric, *ends, *further, "loss"])
        symbol = scale_of(str(kind)).symbol
        for gamma, row in values.iterrows():
            level = float(str(gamma))
            where = distribution(str(kind), level, info.gamma_train)
            interval = (
                ""
                if row[ends].isna().any()
                else " to ".join(short_number(row[end]) for end in ends)
            )
            numbers = (
                short_number(row[metric]),
                interval,
                *(f"{row[name]:.2f}" for name in further),
                short_number(row["loss"]),
            )
            table.add_row(str(kind), f"{symbol} = {level:g}", where, *numbers)
        if len(values) > 1:
            means = (f"{values[name].mean():.2f}" if name == noisy else "" for name in further)
            table.add_row(
                str(kind),
                *_over_levels(values[metric], symbol, info.metric.higher_is_better),
                *means,
            )
    return table


def _over_levels(
    curve: pd.Series[float], symbol: str, higher_is_better: bool
) -> tuple[str, str, str, str]:
    """One number for a curve, as in the paper: the area under an accuracy, the mean of an error."""
    levels = curve.index.tolist()
    if not higher_is_better:
        return "mean", "", short_number(curve.mean()), f"of {len(levels)} levels"
    area = area_under_curve(levels, curve.tolist())
    return "AUC", "", f"{area:.4f}", f"over {symbol} {min(levels):g} to {max(levels):g}"


def ratio_table(run: Run) -> Table:
    """The ratios f_l / f_{l−1} of single examples at each level, over all layers; no rows for a
    model of one layer.
    """
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("noise", "level", "mean f_l / f_l−1", "median", "steps that lower the loss"):
        table.add_column(column, justify="left" if column == "noise" else "right")
    ratios = run.read_table("ratios")
    over_layers = ratios[ratios["layer"] == 0]
    for keys, rows in over_layers.groupby(["perturbation", "gamma"]):
        kind, gamma = keys
        values = dict(zip(rows["name"], rows["value"], strict=True))
        numbers = (
            f"{values['mean']:.3f}",
            f"{values['median']:.3f}",
            f"{values['decreasing']:.1%}",
        )
        table.add_row(str(kind), f"{scale_of(kind).symbol} = {gamma:g}", *numbers)
    return table


def descent_table(run: Run) -> Table:
    """Constraints kept, the best layer, and the theory's bound at each level; no rows without
    descent.csv.
    """
    has_bound = carry_over.has_promise(run)
    promised = (
        "the theory's bound on it"
        if has_bound
        else "no promise, as training does not keep the constraints"
    )
    meaning = f"min f_k: the lowest layer loss. bound: {promised}. f_L − min f_k: what reading the last layer costs"
    table = Table(
        box=None, padding=(0, 2, 0, 0), caption=meaning, caption_justify="left", caption_style=""
    )
    columns = (
        "noise",
        "level",
        "constraints kept",
        "best layer",
        "min f_k",
        "bound",
        "f_L − min f_k",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "noise" else "right")
    info, summary = run.finished_info(), run.read_table("descent")
    values = summary[summary["layer"] == 0].pivot(
        index=["perturbation", "gamma"], columns="name", values="value"
    )
    for (kind, gamma), row in values.iterrows():
        level = f"{scale_of(kind).symbol} = {gamma:g}"
        bound = short_number(row["bound_at_depth"]) if has_bound else "–"
        numbers = (short_number(row["best_loss"]), bound, short_number(row["gap"]))
        table.add_row(
            kind, level, f"{row['kept']:.0f} of {info.layers}", f"{row['best_layer']:.0f}", *numbers
        )
    return table


def exit_table(run: Run) -> Table:
    """Accuracy, mean depth and share of FLOPs under each chosen exit rule at each level; no rows
    without exits.csv.
    """
    title = f"early exit: accuracy, mean number of layers (of {run.finished_info().layers}), share of the FLOPs"
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    found = run.read_table("exits")
    found = found[(found["split"] == "test") & (found["chosen"] == 1)]
    rules = found.drop_duplicates("rule").set_index("rule")["threshold"]
    headers = [
        str(ExitRule(name, rules[name])).replace(" ", "\n", 1) for name in RULES if name in rules
    ]
    for column in ("noise", "level", "no exit", *headers):
        table.add_column(column, justify="left" if column == "noise" else "right", no_wrap=True)
    for (kind, gamma), rows in found.groupby(["perturbation", "gamma"]):
        means = rows.groupby("rule").mean(numeric_only=True)
        cells = [
            f"{row['accuracy']:.4f} {row['mean_depth']:.2f} {row['flops'] / row['full_flops']:3.0%}"
            for row in (means.loc[name] for name in RULES if name in rules)
        ]
        table.add_row(
            kind,
            f"{scale_of(kind).symbol} = {gamma:g}",
            f"{means['full_accuracy'].iloc[0]:.4f}",
            *cells,
        )
    return table
