"""The end of a run: its verdict on validation data, written into the run folder."""

from __future__ import annotations

import dataclasses

from cudt.method import constraints
from cudt.method.constraints import LayerVerdict
from cudt.models.assemble import TrainingProblem
from cudt.models.layer_losses import Measurement
from cudt.runs.info import BestEpoch, MultiplierInfo, RunInfo, SigmaX, VerdictInfo
from cudt.runs.run import OWN, Run
from cudt.training.selection import early_stop
from cudt.training.state import TrainingState


def write(
    run: Run,
    problem: TrainingProblem,
    state: TrainingState,
    measured: Measurement,
    verdicts: list[LayerVerdict],
    sigma_x: float,
) -> None:
    """Write the validation losses and the verdict of the run's own weights, and mark the run as
    finished.

    `sigma_x` is σ_x of these weights.
    """
    import pandas as pd

    settings, descent, task = run.recipe.settings, problem.descent, problem.task
    layers = pd.DataFrame(
        {
            "split": "validation",
            "data": OWN,
            "weights": run.weights,
            "noise": settings.noise.kind,
            "gamma": settings.noise.gamma_train,
            "seed": 0,
            "layer": range(1, len(verdicts) + 1),
            "loss": measured.layer_losses.tolist(),
            "metric": [task.metric(score) for score in measured.layer_scores.tolist()],
            "standard_error": [one.standard_error for one in verdicts],
        }
    )
    run.write_table("layers", layers)
    is_best = run.weights == "best"
    epoch, step = (state.best_epoch, state.best_step) if is_best else (state.epoch, state.step)
    info = RunInfo(
        status="finished",
        best=BestEpoch(epoch=epoch, validation_loss=measured.layer_losses[-1].item(), step=step),
        sigma_x=SigmaX(training=state.sigma_x, evaluation=sigma_x),
        feasible=constraints.is_feasible(verdicts),
        monotone=constraints.is_monotone(descent.reference, measured.layer_losses.tolist()),
        verdicts=[VerdictInfo(**dataclasses.asdict(one), verdict=one.verdict) for one in verdicts],
        multipliers=MultiplierInfo(
            best=state.best_multipliers, last=descent.multiplier_values.tolist()
        ),
    )
    stopped = early_stop(state)
    run.update_info(info if stopped is None else info.model_copy(update={"stopped_early": stopped}))
