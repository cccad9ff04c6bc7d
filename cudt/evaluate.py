"""Out-of-distribution evaluation: a trained run on test inputs perturbed at each γ of a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch

from cudt import device
from cudt.device import DeviceName
from cudt.errors import UserError
from cudt.experiment import assemble
from cudt.layerwise import Measurement, NoiseSource, batches, measure
from cudt.runs import Run
from cudt.tasks import Batch, Task

Track = Callable[[Iterable[Batch], int, str], Iterable[Batch]]


@dataclass(frozen=True)
class Grid:
    """Which levels and kinds of noise; None stands for what the run's recipe says."""

    gammas: list[float] | None = None
    perturbations: list[str] | None = None


def check_trained(run: Run) -> None:
    """Refuse a run that has no verdict yet; call it for every run before evaluating the first."""
    status = run.info().get("status")
    if status != "finished":
        raise UserError(
            f"'{run.path}' is {status}, not finished; `cudt train` with the same recipe and settings goes on with it"
        )


def evaluate_ood(run: Run, grid: Grid, where: DeviceName, data_root: Path | None, track: Track) -> None:
    """Fill `ood.csv` and the test rows of `layers.csv`; levels that were evaluated before are replaced."""
    check_trained(run)
    settings = run.recipe.settings.evaluation
    place = device.choose(where)
    experiment = assemble(run.recipe, data_root, place)
    task, layerwise = experiment.task, experiment.layerwise
    layerwise.load_state_dict(run.load_best_weights())
    gammas = grid.gammas if grid.gammas is not None else settings.grid
    # Layer losses are wanted at γ_train too, where the constraints hold; the curve keeps the grid that was asked for.
    levels = sorted({*gammas, run.recipe.settings.noise.gamma_train})
    size = settings.batch_size
    n_batches = -(-len(task.examples("test")) // size)
    for kind in grid.perturbations or cast(list[str], settings.perturbations):
        by_seed: list[list[Measurement]] = []
        for seed in settings.noise_seeds:
            noise = NoiseSource(kind, run.info()["sigma_x"]["evaluation"], seed)
            examples = track(batches(task, "test", size, place), n_batches, f"{run.path.name} {kind}")
            by_seed.append(measure(layerwise, examples, noise, levels))
        seeds = zip(settings.noise_seeds, by_seed, strict=True)
        rows = pd.concat([_ood_rows(task, kind, seed, levels, measured) for seed, measured in seeds])
        run.merge_table("ood", rows[rows["gamma"].isin(gammas)], ["perturbation", "gamma"])
        run.merge_table("layers", _layer_rows(task, kind, levels, by_seed), ["split", "perturbation", "gamma"])


def _ood_rows(task: Task, kind: str, seed: int, gammas: Sequence[float], measured: list[Measurement]) -> pd.DataFrame:
    """The last layer's metric and loss at each level."""
    rows: list[dict[str, Any]] = []
    for gamma, level in zip(gammas, measured, strict=True):
        values = {task.metric_name: task.metric(level.layer_scores[-1].item()), "loss": level.layer_losses[-1].item()}
        for name, value in values.items():
            rows.append(
                {
                    "perturbation": kind,
                    "gamma": gamma,
                    "seed": seed,
                    "metric": name,
                    "value": value,
                    "n": level.losses.shape[1],
                }
            )
    return pd.DataFrame(rows)


def _layer_rows(task: Task, kind: str, gammas: Sequence[float], by_seed: list[list[Measurement]]) -> pd.DataFrame:
    """Each layer's loss and metric at each level, the noise seeds averaged."""
    rows: list[dict[str, Any]] = []
    for gamma, levels in zip(gammas, zip(*by_seed, strict=True), strict=True):
        losses = torch.stack([level.layer_losses for level in levels]).mean(0).tolist()
        scores = torch.stack([level.layer_scores for level in levels]).mean(0).tolist()
        for layer, (loss, score) in enumerate(zip(losses, scores, strict=True), 1):
            rows.append(
                {
                    "split": "test",
                    "perturbation": kind,
                    "gamma": gamma,
                    "layer": layer,
                    "loss": loss,
                    "metric": task.metric(score),
                }
            )
    return pd.DataFrame(rows)
