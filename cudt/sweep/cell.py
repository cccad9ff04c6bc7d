"""One cell of a sweep: a run that is trained to its end and judged, on training and validation data alone."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudt.config import recipe as recipes
from cudt.evaluation import evaluate
from cudt.runs.run import Run, run_for
from cudt.training import launch
from cudt.training.display import Display
from cudt.utils.device import DeviceName
from cudt.utils.errors import TrainingStoppedError, UserError
from cudt.utils.progress import track


@dataclass(frozen=True)
class Job:
    """What a worker needs to know; the recipe is its text, because typed recipes cannot be sent."""

    recipe: str
    out: Path
    device: DeviceName
    data_root: Path | None
    measure: str
    gammas: list[float] | None


@dataclass(frozen=True)
class Outcome:
    """What came out, for the study and the tables."""

    score: float
    facts: dict[str, Any]


def do(job: Job, display: Display) -> Outcome:
    """Train and judge; a run that is finished is only judged, one that was begun goes on."""
    recipe = recipes.parse_resolved(job.recipe)
    run = run_for(recipe, job.out)
    # What run.json tells to repeat it with.
    root = ["--data-root", str(job.data_root)] if job.data_root is not None else []
    sys.argv = ["cudt", "train", "--recipe", str(run.path / "recipe.yaml"), "--out", str(job.out), *root]
    # A worker whose sweep was killed may be saving still, and two cells may be the same run.
    launch.train(recipe, job.out, job.device, job.data_root, display, export_model=False, wait=True)
    with run.locked(wait=True):
        if job.gammas is not None:
            evaluate.evaluate_validation(run, job.gammas, job.device, job.data_root, track)
        # Three times as large as the weights, and of no use any more.
        run.last_checkpoint.unlink(missing_ok=True)
    score = score_of(run, job.measure, job.gammas)
    if not math.isfinite(score):
        raise TrainingStoppedError(f"its score, the validation {job.measure}, is {score}")
    return Outcome(score, _facts(run))


def score_of(run: Run, measure: str, gammas: list[float] | None) -> float:
    """`loss` f_L or `metric` at γ_train, of the best epoch; or `grid`, the mean metric over levels. Validation data."""
    info = run.finished_info()
    if measure == "loss":
        return info.best.validation_loss
    if measure == "metric":
        layers = run.read_table("layers")
        return float(layers[layers["split"] == "validation"].sort_values("layer")["metric"].iloc[-1])
    table = run.read_table("validation")
    wanted = table[(table["metric"] == info.metric.name) & table["gamma"].isin(gammas or [])]
    return float(wanted["value"].mean())


def updates_of(run: Run) -> int | None:
    """Updates up to now; None where that is not known, because nothing was logged or the run is damaged."""
    try:
        history = run.read_table("history")
    except (UserError, ValueError, OSError):
        return None
    return None if history.empty else int(history["step"].max())


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
