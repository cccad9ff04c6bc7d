"""Estimate what a run costs on this machine: time a few updates and validation batches, and extrapolate."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cudt.config.recipe import NamedRecipe
from cudt.data.batching import n_batches, to_device
from cudt.data.splits import Split
from cudt.models.assemble import TrainingProblem, assemble
from cudt.utils import device
from cudt.utils.device import DeviceName, synchronize

#: Timed repetitions, after an untimed one because the first is slower.
_REPETITIONS = 3
#: Seconds in all after which one repetition suffices, and seconds of the first time after which none is needed.
_ENOUGH, _LONG = 3.0, 20.0


def cost_key(recipe: NamedRecipe) -> str:
    """A key that is equal for recipes of equal cost: all settings except numbers that do not affect the time."""
    resolved = recipe.resolved()
    free = {"name", "reproduces", "needs", "expect", "seed", "descent", "noise"}
    shaping = {key: value for key, value in resolved.items() if key not in free}
    for key in ("learning_rate", "readout_learning_rate", "warmup_share", "schedule", "weight_decay", "clip_norm"):
        del shaping["training"][key]
    return json.dumps(shaping, sort_keys=True)


def estimate(recipe: NamedRecipe, gammas: Sequence[float] | None, where: DeviceName, data_root: Path | None) -> float:
    """Seconds to train a run and to validate it: after every epoch, and at the end at each level of `gammas`."""
    settings = recipe.settings
    problem = assemble(recipe, data_root, device.choose(where))
    training, size = problem.task.examples("train"), settings.evaluation.batch_size
    in_update = min(settings.training.batch_size, len(training))
    validations = settings.training.epochs + 1 + len(gammas or [])
    update = settings.training.accumulation * _seconds(
        _update(problem, _batch(problem, "train", max(1, in_update // settings.training.accumulation)))
    )
    validation = problem.task.examples("validation")
    layerwise, batch = problem.layerwise, _batch(problem, "validation", size)
    one_validation = _seconds(lambda: layerwise.judge(batch)) * n_batches(validation, size)
    return settings.training.epochs * (len(training) // in_update) * update + validations * one_validation


def _batch(problem: TrainingProblem, split: Split, size: int) -> Any:
    task = problem.task
    examples = task.examples(split)
    where = next(problem.layerwise.parameters()).device
    return to_device(task.collate([examples[number] for number in range(min(size, len(examples)))]), where)


def _update(problem: TrainingProblem, batch: Any) -> Callable[[], object]:
    """A training step that changes nothing, because its learning rate is 0."""
    layerwise, objective = problem.layerwise.train(), problem.objective
    optimizer = torch.optim.Adam([weight for weight in layerwise.parameters() if weight.requires_grad], lr=0.0)

    def update() -> None:
        layerwise(batch, None, objective.layers).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def _seconds(act: Callable[[], object]) -> float:
    """The median of a few repetitions without the first; fewer of what takes long."""
    times: list[float] = []
    while len(times) < (1 if sum(times) > _LONG else 2 if sum(times) > _ENOUGH else 1 + _REPETITIONS):
        synchronize()
        began = time.perf_counter()
        act()
        synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:] or times)
