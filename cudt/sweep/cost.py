"""What a run would cost here: a few updates and judgements are timed, the rest is counted."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cudt.config.recipe import NamedRecipe
from cudt.data.batching import n_batches, to_device
from cudt.data.splits import Split
from cudt.models.assemble import TrainingProblem, assemble
from cudt.utils import device
from cudt.utils.device import DeviceName

#: Timed after one that is not, because the first is slower.
_TIMES = 3


def like(recipe: NamedRecipe) -> str:
    """The same for recipes that cost the same: all but the numbers that training merely computes with."""
    resolved = recipe.resolved()
    free = {"name", "reproduces", "needs", "expect", "seed", "descent", "noise"}
    shaping = {key: value for key, value in resolved.items() if key not in free}
    for key in ("learning_rate", "weight_decay", "clip_norm"):
        del shaping["training"][key]
    return json.dumps(shaping, sort_keys=True)


def estimate(recipe: NamedRecipe, gammas: Sequence[float] | None, where: DeviceName, data_root: Path | None) -> float:
    """Seconds for training a run and judging it: every epoch on validation data, at the end at each level too."""
    settings = recipe.settings
    experiment = assemble(recipe, data_root, device.choose(where))
    training, size = experiment.task.examples("train"), settings.evaluation.batch_size
    in_update = min(settings.training.batch_size, len(training))
    judgements = settings.training.epochs + 1 + len(gammas or [])
    update = settings.training.accumulation * _seconds(
        _update(experiment, _batch(experiment, "train", max(1, in_update // settings.training.accumulation)))
    )
    validation = experiment.task.examples("validation")
    layerwise, batch = experiment.layerwise, _batch(experiment, "validation", size)
    judge = _seconds(lambda: layerwise.judge(batch)) * n_batches(validation, size)
    return settings.training.epochs * (len(training) // in_update) * update + judgements * judge


def _batch(experiment: TrainingProblem, split: Split, size: int) -> Any:
    task = experiment.task
    examples = task.examples(split)
    place = next(experiment.layerwise.parameters()).device
    return to_device(task.collate([examples[number] for number in range(min(size, len(examples)))]), place)


def _update(experiment: TrainingProblem, batch: Any) -> Callable[[], object]:
    """One step of training that changes nothing."""
    layerwise, objective = experiment.layerwise.train(), experiment.objective
    objective.draw(np.random.default_rng(0))
    optimizer = torch.optim.Adam([weight for weight in layerwise.parameters() if weight.requires_grad], lr=0.0)

    def update() -> None:
        layerwise(batch, None, objective.layers).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def _seconds(act: Callable[[], object]) -> float:
    times = []
    for _ in range(1 + _TIMES):
        _synchronise()
        began = time.perf_counter()
        act()
        _synchronise()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
