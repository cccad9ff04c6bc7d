"""From measurements to the rows of a run's tables: ood, layers, layer_metrics, ratios, ratio_bins
and examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from cudt.evaluation import intervals, ratios
from cudt.evaluation.curves import input_metric
from cudt.evaluation.stored import MeasuredExamples
from cudt.models.layer_losses import Measurement
from cudt.runs.examples import PIECE
from cudt.runs.tables import TABLES
from cudt.tasks.base import Task


def ood_rows(
    task: Task, kind: str, seed: int, measured: Sequence[MeasuredExamples], levels: Sequence[float]
) -> pd.DataFrame:
    """The last layer's metric and loss at each level, each with the ends of its interval, if it has
    one.

    For tasks where the noisy input is an answer, also its metric.
    """
    rows = []
    for gamma, level in zip(levels, measured, strict=True):
        last = level.last_layer()
        n, score = len(last.ids), level.layer_scores[-1].item()
        ends = (
            intervals.wilson(score, n)
            if task.scores_are_shares
            else _over_examples(task, last.scores[0], last)
        )
        values = {
            name: [_metrics(task, one)[name] for one in (score, *ends)]
            for name in _metrics(task, score)
        }
        values["loss"] = [
            level.layer_losses[-1].item(),
            *_over_examples(task, last.losses[0], last),
        ]
        for name, (value, *interval) in values.items():
            # Without an interval there is only the first row.
            named = zip(
                (name, f"{name}_low", f"{name}_high"), (value, *sorted(interval)), strict=False
            )
            rows += [(kind, gamma, seed, *pair, n) for pair in named]
        if level.input_score is not None:
            rows.append(
                (
                    kind,
                    gamma,
                    seed,
                    input_metric(task.metric_name),
                    task.metric(level.input_score),
                    n,
                )
            )
    return pd.DataFrame(rows, columns=TABLES["ood"])


def _over_examples(task: Task, values: Tensor, level: Measurement) -> tuple[float, ...]:
    """The ends of the interval of a mean over examples, or over their clips; none if all are from
    one clip.
    """
    if not task.windows_of_clips:
        return intervals.bootstrap(values, level.weights)
    return (
        intervals.bootstrap_of_clips(
            values.numpy(), level.weights.numpy(), intervals.clips_of(level.ids)
        )
        or ()
    )


def example_rows(measured: MeasuredExamples) -> Iterator[pd.DataFrame]:
    """The last layer's score of each example at one level, and its weight, in the order of ids and
    in pieces.
    """
    last = measured.last_layer()
    ids = np.array(last.ids, dtype=object)
    order = np.argsort(ids, kind="stable")
    for start in range(0, len(order), PIECE):
        some = order[start : start + PIECE]
        yield pd.DataFrame(
            {"id": ids[some], "weight": last.weights[some], "score": last.scores[0, some]}
        )


def _metrics(task: Task, score: float) -> dict[str, float]:
    """The task's metric and its further metrics for a mean score, by name."""
    return {task.metric_name: task.metric(score), **task.further_metrics(score)}


def layer_rows(task: Task, kind: str, measured: Mapping[float, MeasuredExamples]) -> pd.DataFrame:
    """Each layer's loss and metric at each level."""
    rows = []
    for gamma, level in measured.items():
        metrics = [task.metric(score) for score in level.layer_scores.tolist()]
        for layer, (loss, metric) in enumerate(
            zip(level.layer_losses.tolist(), metrics, strict=True), 1
        ):
            rows.append(("test", kind, gamma, layer, loss, metric))
    return pd.DataFrame(rows, columns=TABLES["layers"])


def layer_metric_rows(
    task: Task, kind: str, measured: Mapping[float, MeasuredExamples]
) -> pd.DataFrame:
    """The task's further metrics of each layer; no rows if it has none."""
    rows = []
    for gamma, level in measured.items():
        for layer, score in enumerate(level.layer_scores.tolist(), 1):
            rows += [
                (kind, gamma, layer, name, value)
                for name, value in task.further_metrics(score).items()
            ]
    return pd.DataFrame(rows, columns=TABLES["layer_metrics"])


def ratio_tables(kind: str, measured: Mapping[float, MeasuredExamples]) -> dict[str, pd.DataFrame]:
    """The distribution of f_l / f_{l−1} over examples, by layer and for all layers (layer 0), and
    its histogram.
    """
    summaries: list[tuple[Any, ...]] = []
    bins: list[tuple[Any, ...]] = []
    for gamma, level in measured.items():
        found = ratios.distribution(partial(_ratios, level))
        if found is None:
            continue
        for layer, summary in found.summaries.items():
            summaries += [(kind, gamma, layer, name, value) for name, value in summary.items()]
        bins += [(kind, gamma, *row) for row in found.histogram]
    return {
        "ratios": pd.DataFrame(summaries, columns=TABLES["ratios"]),
        "ratio_bins": pd.DataFrame(bins, columns=TABLES["ratio_bins"]),
    }


def _ratios(measured: MeasuredExamples) -> Iterator[Tensor]:
    return (ratios.layer_ratios(block.losses) for block in measured.blocks())
