"""The end of a training: layers.csv on validation data, and in run.json the verdict and that the run is finished."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cudt.method import feasibility
from cudt.method.feasibility import LayerVerdict
from cudt.method.measurement import Measurement
from cudt.models.assemble import TrainingProblem
from cudt.runs.info import BestEpoch, MultiplierInfo, RunInfo, SigmaX, VerdictInfo
from cudt.runs.run import Run


def conclude(
    run: Run,
    problem: TrainingProblem,
    measured: Measurement,
    verdicts: Sequence[LayerVerdict],
    *,
    epoch: int,
    sigma_x: SigmaX,
    multipliers: MultiplierInfo,
) -> None:
    """Mark a run as finished; `measured` are the run's own weights on validation data, those after `epoch`."""
    import pandas as pd

    noise, task = run.recipe.settings.noise, problem.task
    layers = pd.DataFrame(
        {
            "split": "validation",
            "perturbation": noise.kind,
            "gamma": noise.gamma_train,
            "layer": range(1, problem.layerwise.model.n_layers + 1),
            "loss": measured.layer_losses.tolist(),
            "metric": [task.metric(score) for score in measured.layer_scores.tolist()],
        }
    )
    run.merge_table("layers", layers, ["split"])
    run.update_info(
        RunInfo(
            status="finished",
            best=BestEpoch(epoch=epoch, validation_loss=measured.layer_losses[-1].item()),
            sigma_x=sigma_x,
            feasible=feasibility.is_feasible(verdicts),
            monotone=feasibility.is_monotone(problem.descent.reference, measured.layer_losses.tolist()),
            verdicts=[VerdictInfo(**dataclasses.asdict(one), verdict=one.verdict) for one in verdicts],
            multipliers=multipliers,
        )
    )
