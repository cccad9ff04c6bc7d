"""One cell of a sweep: train a run to its end and score it, on training and validation data
only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from cudt.config import recipe as recipes
from cudt.evaluation import evaluate
from cudt.runs.run import Run, run_for
from cudt.sweep.messages import CellJob, CellProgress, CellResult
from cudt.sweep.source import Report, updates_of
from cudt.training import train as training
from cudt.training.checkpoint import discard
from cudt.utils.errors import TrainingStoppedError
from cudt.utils.text import track

#: Seconds between two progress messages of a cell.
_REPORT_INTERVAL = 0.3


class ProgressDisplay:
    """A training's display that reports the progress to the sweep."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last = 0.0

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, step: int, steps: int, losses: Sequence[float]) -> None:
        if time.monotonic() - self._last > _REPORT_INTERVAL:
            self._last = time.monotonic()
            self._report(CellProgress(step, steps, losses[-1]))

    def validated(self, line: str) -> None:
        pass


def run_cell(job: CellJob, report: Report) -> CellResult:
    """Train and score a cell. An interrupted run is resumed; a finished run is only scored."""
    recipe = recipes.parse_resolved(job.recipe)
    run = run_for(recipe, job.out)
    # A worker of a killed sweep may still be saving this run, and two cells may be the same run:
    # hence `wait`.
    training.train(
        recipe,
        job.out,
        job.device,
        job.data_root,
        ProgressDisplay(report),
        keep_weights=True,
        wait=True,
        after_epoch=None if job.referee is None else job.referee.after_epoch,
        track=training.TrackingRequest(job.trackers, job.group),
    )
    if job.referee is not None:
        job.referee.after_training(run)
    with run.locked(wait=True):
        if job.gammas is not None:
            evaluate.evaluate_validation(run, job.gammas, job.device, job.data_root, track)
        discard(run)
    score = score_of(run, job.measure, job.gammas)
    if not math.isfinite(score):
        raise TrainingStoppedError(f"the score (validation {job.measure}) is {score}")
    return CellResult(score, _facts(run))


def score_of(run: Run, measure: str, gammas: list[float] | None) -> float:
    """A run's score on validation data, with its own weights (`training.select`).

    `loss` is f_L at γ_train, `metric` the metric at γ_train, and `grid` the mean metric over the
    levels `gammas`.
    """
    info = run.finished_info()
    if measure == "loss":
        return info.best.validation_loss
    if measure == "metric":
        layers = run.read_table("layers")
        return float(
            layers[layers["split"] == "validation"].sort_values("layer")["metric"].iloc[-1]
        )
    table = run.rows("ood", "validation")
    wanted = table[table["gamma"].isin(gammas or [])]
    return float(wanted["value"].mean())


def _facts(run: Run) -> dict[str, Any]:
    info = run.finished_info()
    layers = run.read_table("layers")
    last = layers[layers["split"] == "validation"].sort_values("layer").iloc[-1]
    return {
        "validation_loss": float(last["loss"]),
        "validation_metric": float(last["metric"]),
        "feasible": info.feasible,
        "monotone": info.monotone,
        "best_epoch": info.best.epoch,
        "updates": updates_of(run),
    }
