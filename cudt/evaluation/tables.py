"""From measurements to the rows of a run's tables: ood, layers, layer_metrics, ratios, ratio_bins and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from cudt.evaluation import intervals, ratios
from cudt.evaluation.curves import input_metric
from cudt.method.measurement import Measurement
from cudt.runs.tables import EXAMPLES, TABLES
from cudt.tasks.base import Task


def ood_rows(
    task: Task, kind: str, seed: int, measured: Sequence[Measurement], levels: Sequence[float]
) -> pd.DataFrame:
    """The last layer's metric and loss at each level, each with the ends of its interval, if it has one.

    For tasks where the noisy input is an answer, also its metric.
    """
    rows = []
    for gamma, level in zip(levels, measured, strict=True):
        n = level.losses.shape[1]
        score = level.layer_scores[-1].item()
        ends = intervals.wilson(score, n) if task.scores_are_shares else _over_examples(task, level.scores[-1], level)
        values = {name: [_metrics(task, one)[name] for one in (score, *ends)] for name in _metrics(task, score)}
        values["loss"] = [level.layer_losses[-1].item(), *_over_examples(task, level.losses[-1], level)]
        for name, (value, *interval) in values.items():
            # Without an interval there is only the first row.
            named = zip((name, f"{name}_low", f"{name}_high"), (value, *sorted(interval)), strict=False)
            rows += [(kind, gamma, seed, *pair, n) for pair in named]
        if level.input_score is not None:
            rows.append((kind, gamma, seed, input_metric(task.metric_name), task.metric(level.input_score), n))
    return pd.DataFrame(rows, columns=TABLES["ood"])


def _over_examples(task: Task, values: Tensor, level: Measurement) -> tuple[float, ...]:
    """The ends of the interval of a mean over examples, or over their clips; none if all are from one clip."""
    if not task.windows_of_clips:
        return intervals.bootstrap(values, level.weights)
    return intervals.bootstrap_of_clips(values.numpy(), level.weights.numpy(), intervals.clips_of(level.ids)) or ()


def example_rows(kind: str, seed: int, measured: Sequence[Measurement], levels: Sequence[float]) -> pd.DataFrame:
    """The last layer's score of each example at each level, and its weight."""
    parts = [
        pd.DataFrame({"gamma": gamma, "id": level.ids, "weight": level.weights, "score": level.scores[-1]})
        for gamma, level in zip(levels, measured, strict=True)
    ]
    return pd.concat(parts).assign(perturbation=kind, seed=seed)[list(EXAMPLES)]


def _metrics(task: Task, score: float) -> dict[str, float]:
    """The task's metric and its further metrics for a mean score, by name."""
    return {task.metric_name: task.metric(score), **task.further_metrics(score)}


def layer_rows(task: Task, kind: str, measured: dict[float, Measurement]) -> pd.DataFrame:
    """Each layer's loss and metric at each level."""
    rows = []
    for gamma, level in measured.items():
        metrics = [task.metric(score) for score in level.layer_scores.tolist()]
        for layer, (loss, metric) in enumerate(zip(level.layer_losses.tolist(), metrics, strict=True), 1):
            rows.append(("test", kind, gamma, layer, loss, metric))
    return pd.DataFrame(rows, columns=TABLES["layers"])


def layer_metric_rows(task: Task, kind: str, measured: dict[float, Measurement]) -> pd.DataFrame:
    """The task's further metrics of each layer; no rows if it has none."""
    rows = []
    for gamma, level in measured.items():
        for layer, score in enumerate(level.layer_scores.tolist(), 1):
            rows += [(kind, gamma, layer, name, value) for name, value in task.further_metrics(score).items()]
    return pd.DataFrame(rows, columns=TABLES["layer_metrics"])


def ratio_tables(kind: str, measured: dict[float, Measurement]) -> dict[str, pd.DataFrame]:
    """The distribution of f_l / f_{l−1} over examples, by layer and for all layers (layer 0), and its histogram."""
    summaries: list[tuple[Any, ...]] = []
    bins: list[tuple[Any, ...]] = []
    for gamma, level in measured.items():
        by_layer = ratios.layer_ratios(level.losses)
        if not len(by_layer):
            continue
        for layer, values in [(0, by_layer), *enumerate(by_layer, 2)]:
            summaries += [(kind, gamma, layer, name, value) for name, value in ratios.summary(values).items()]
        bins += [(kind, gamma, *row) for row in ratios.histogram(by_layer)]
    return {
        "ratios": pd.DataFrame(summaries, columns=TABLES["ratios"]),
        "ratio_bins": pd.DataFrame(bins, columns=TABLES["ratio_bins"]),
    }
