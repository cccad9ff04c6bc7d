"""From single examples to the rows of ood.csv and layers.csv, and what else follows from them:
ratios of layers, constraints kept, areas, PSNR. Nothing of that is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cudt.evaluation import intervals
from cudt.evaluation.intervals import Array
from cudt.runs.info import FinishedInfo
from cudt.runs.run import Run
from cudt.utils.text import short_number

if TYPE_CHECKING:
    from cudt.method.constraints import LayerVerdict
    from cudt.tasks.base import Task

#: Edges of the histogram of ratios; the last bin has no right edge.
RATIO_EDGES = np.array([*(round(0.02 * step, 2) for step in range(101)), np.inf])
#: The largest value of a pixel.
_PEAK = 255.0


# ---------------------------------------------------------------- rows of the tables


def layers_of(examples: pd.DataFrame, name: str) -> Array:
    """A number of every example at every layer, (layers, examples), in double precision."""
    n_layers = sum(column.startswith("loss_") for column in examples.columns)
    return examples[[f"{name}_{layer}" for layer in range(1, n_layers + 1)]].to_numpy(float).T


def ood_row(task: Task, keys: Mapping[str, Any], examples: pd.DataFrame) -> dict[str, Any]:
    """The last layer's metric with its 95 % interval, and the metric of the noisy input itself; NaN
    where there is none.
    """
    weights = examples["weight"].to_numpy(float)
    scores, inputs = layers_of(examples, "score")[-1], examples["input"].to_numpy(float)
    score = float(scores @ weights / weights.sum())
    if task.scores_are_shares:
        ends = intervals.wilson(score, len(examples))
    elif task.windows_of_clips:
        clips = _numbers(examples["group"])
        ends = intervals.bootstrap_of_clips(scores, weights, clips) or (math.nan, math.nan)
    else:
        ends = intervals.bootstrap(scores, weights)
    low, high = sorted(task.metric(end) for end in ends)
    noisy = task.metric(float(inputs @ weights / weights.sum()))
    numbers = {"value": task.metric(score), "low": low, "high": high, "input": noisy}
    return {**keys, **numbers, "n": len(examples)}


def layer_rows(
    task: Task, info: FinishedInfo, keys: Mapping[str, Any], examples: pd.DataFrame
) -> list[dict[str, Any]]:
    """Each layer's loss and metric, and the standard error of its constraint: over examples, or
    over the clips that they are windows of.
    """
    weights = examples["weight"].to_numpy(float)
    scores = layers_of(examples, "score") @ weights / weights.sum()
    losses = layers_of(examples, "loss") @ weights / weights.sum()
    errors = [one.standard_error for one in _judged(info, examples)]
    columns = ("loss", "metric", "standard_error")
    numbers = zip(losses.tolist(), map(task.metric, scores.tolist()), errors, strict=True)
    return [
        {**keys, "layer": layer, **dict(zip(columns, row, strict=True))}
        for layer, row in enumerate(numbers, 1)
    ]


def _judged(info: FinishedInfo, examples: pd.DataFrame) -> list[LayerVerdict]:
    import torch

    from cudt.method import constraints

    losses, weights = layers_of(examples, "loss"), examples["weight"].to_numpy(float)
    if examples["group"].nunique() > 1:
        losses, weights = _grouped(losses, weights, _numbers(examples["group"]))
    slack = torch.zeros(len(losses), dtype=torch.double)
    measured = torch.from_numpy(losses), torch.from_numpy(weights)
    return constraints.judge(*measured, info.reference, info.rates, slack, info.form)


def _grouped(values: Array, weights: Array, numbers: Array) -> tuple[Array, Array]:
    """The weighted mean and the weight of each group: a clip is one observation."""
    totals = np.bincount(numbers, weights)
    sums = [np.bincount(numbers, row * weights) for row in values]
    return np.stack(sums) / np.maximum(totals, np.finfo(float).tiny), totals


def _numbers(groups: pd.Series[str]) -> Array:
    """The number of each row's group, in the order of their names."""
    return np.unique(groups.to_numpy(str), return_inverse=True)[1]


def merged(old: pd.DataFrame, rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The old rows whose keys are not among the new ones, and the new rows."""
    if old.empty or rows.empty:
        return rows if old.empty else old
    columns = [*keys]
    replaced = pd.MultiIndex.from_frame(rows[columns].drop_duplicates())
    kept = old[~pd.MultiIndex.from_frame(old[columns]).isin(replaced)]
    return pd.concat([kept, rows], ignore_index=True) if len(kept) else rows


# ---------------------------------------------------------------- what follows from tables


def over_seeds(rows: pd.DataFrame, *, is_root: bool) -> pd.DataFrame:
    """Rows of layers.csv, averaged over the noise seeds. The mean standard error is an upper bound:
    an example with two seeds is still one example.
    """
    keys = ["split", "data", "weights", "noise", "gamma", "layer"]
    rows = rows.assign(metric=rows["metric"] ** 2) if is_root else rows
    grouped = rows.groupby(keys, as_index=False)[["loss", "metric", "standard_error"]]
    means = grouped.mean(skipna=False)
    return means.assign(metric=np.sqrt(means["metric"])) if is_root else means


def verdicts(
    info: FinishedInfo, rows: pd.DataFrame, *, has_slack: bool = True
) -> list[LayerVerdict]:
    """The verdict on each layer's constraint from the layers of one level, with the slack that the
    run was given; that of weights that are not its own is not known.
    """
    import torch

    from cudt.method.constraints import LayerVerdict, allowed_losses

    rows, form, found = rows.sort_values("layer"), info.form, []
    losses, errors = rows["loss"].tolist(), rows["standard_error"].tolist()
    measured = torch.tensor(losses, dtype=torch.double)
    allowed = allowed_losses(measured, info.reference, info.rates, form).tolist()
    for given, loss, most, error in zip(info.verdicts, losses, allowed, errors, strict=True):
        # A slack of the log form is a factor on what is allowed, which differs between levels.
        slack = given.slack * (most / given.allowed if form == "log" else 1) * has_slack
        found.append(LayerVerdict(given.layer, loss, most, loss - most, error, slack))
    return found


def ratio_bins(examples: pd.DataFrame) -> pd.DataFrame:
    """The histogram of f_l / f_(l−1) over examples and layers l ≥ 2; no rows for one layer. If both
    losses are 0, the ratio is 1.
    """
    losses = layers_of(examples, "loss")
    before, after = losses[:-1], losses[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where((before == 0) & (after == 0), 1.0, after / before)
    counts = np.histogram(ratios, RATIO_EDGES)[0]
    if not counts.sum():
        return pd.DataFrame(columns=["left", "right", "share", "cumulative"], dtype=float)
    bins = {"left": RATIO_EDGES[:-1], "right": RATIO_EDGES[1:], "share": counts / counts.sum()}
    return pd.DataFrame(bins).assign(cumulative=lambda table: table["share"].cumsum())


def area_under_curve(gammas: Sequence[float], values: Sequence[float]) -> float:
    """∫ metric dγ by the trapezoid rule; NaN for a single level. Only areas over the same range can
    be compared.
    """
    if len(gammas) < 2:
        return math.nan
    return float(np.trapezoid(np.asarray(values, dtype=float), np.asarray(gammas, dtype=float)))


def psnr(rmse: Any) -> Any:
    """The peak signal-to-noise ratio 20·log10(255 / RMSE) in dB."""
    with np.errstate(divide="ignore"):
        return 20 * np.log10(_PEAK / rmse)


def result_table(run: Run, *, with_exits: bool = False) -> pd.DataFrame:
    """One row for each noise level, averaged over the noise seeds: the metric with its interval,
    the loss of the last layer, the share of layers that lower the loss, and the layer with the
    lowest one; as texts for the terminal.
    """
    from cudt.evaluation import exits

    info, levels = run.finished_info(), ["noise", "gamma"]
    layers = over_seeds(run.rows("layers"), is_root=False).set_index(levels)
    early = exits.exit_table(run).set_index(levels) if with_exits else None
    rows = []
    for key, row in run.rows("ood").groupby(levels).mean(numeric_only=True).iterrows():
        kind, level = str(key[0]), float(key[1])  # type: ignore[index]
        losses = layers.loc[[key]].sort_values("layer")["loss"].to_numpy()
        ends = [short_number(row[end]) for end in ("low", "high") if not pd.isna(row[end])]
        cells = {
            "noise": kind,
            "level": f"{level:g}",
            info.metric.name: short_number(row["value"]),
            "95 % interval": " to ".join(ends),
            "loss": short_number(losses[-1]),
            "descent": f"{(np.diff(losses, prepend=info.reference) < 0).mean():.0%}",
            "best": losses.argmin() + 1,
        }
        if info.metric.name == "RMSE":
            cells |= {"PSNR": f"{psnr(row['value']):.2f}", "input": short_number(row["input"])}
        if early is not None:
            one = early.loc[key]
            cells |= {"exit": f"{one['accuracy']:.4f}", "layers": f"{one['mean_depth']:.2f}"}
            cells["FLOPs"] = f"{one['flops']:.0%}"
        rows.append(cells)
    return pd.DataFrame(rows)
