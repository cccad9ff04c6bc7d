"""What run.json says about a training from its beginning."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from importlib import metadata

from accelerate import Accelerator

from cudt import __version__
from cudt.config.recipe import NamedRecipe
from cudt.models.assemble import TrainingProblem
from cudt.runs.info import MetricInfo, RunInfo
from cudt.utils.device import name_of

#: Packages whose versions run.json records.
_RECORDED = ("torch", "accelerate", "cooper-optim", "transformers", "peft", "numpy")


def started_info(
    recipe: NamedRecipe,
    problem: TrainingProblem,
    accelerator: Accelerator,
    training_data: str,
    frozen_weights: str,
    command: str | None,
) -> RunInfo:
    """The part of run.json that is known before the first update."""
    settings, task, descent = recipe.settings, problem.task, problem.descent
    return RunInfo(
        status="running",
        reason=None,
        recipe=recipe.name,
        objective=settings.objective,
        seed=settings.seed,
        variant=recipe.identity(without_seed=True),
        task_version=task.version,
        training_data=training_data,
        data_notes=task.notes(),
        frozen_weights=frozen_weights,
        metric=MetricInfo(
            name=task.metric_name,
            higher_is_better=task.higher_is_better,
            of_mean=task.metric_of_mean,
        ),
        has_texts=task.has_texts,
        has_pictures=task.has_pictures,
        windows_of_clips=task.windows_of_clips,
        gamma_train=settings.noise.gamma_train,
        layers=problem.layerwise.model.n_layers,
        parameters=sum(weight.numel() for weight in problem.layerwise.parameters()),
        reference=descent.reference,
        rates=descent.rates,
        form=descent.form,
        device=name_of(accelerator.device),
        processes=accelerator.num_processes,
        autocast=accelerator.mixed_precision,
        versions=versions(),
        command=command,
        begun=utc_now(),
    )


def versions() -> dict[str, str]:
    """The versions of Python, cudt and its libraries."""
    return {
        "cudt": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _RECORDED},
    }


def utc_now() -> str:
    """The time, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
