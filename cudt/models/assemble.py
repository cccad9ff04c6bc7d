"""Builds the objects that a recipe describes: task, model, layer losses, constraints and
objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from cudt.config.recipe import NamedRecipe
from cudt.method.descent import LayerwiseDescent, descent_of
from cudt.method.objectives import Objective, make_objective
from cudt.models.base import build_model, check_model
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.sharding import Sharding
from cudt.noise import CPU
from cudt.tasks.base import Task, build_task
from cudt.utils.device import seed_everything
from cudt.utils.errors import UserError


@dataclass(frozen=True)
class TrainingProblem:
    """A task, a model with its layer losses, and the objective that training minimises."""

    task: Task
    layerwise: LayerwiseLosses
    objective: Objective

    @property
    def descent(self) -> LayerwiseDescent:
        return self.objective.descent


def assemble(
    recipe: NamedRecipe,
    data_root: Path | None,
    device: torch.device,
    sharding: Sharding | None = None,
) -> TrainingProblem:
    """Build everything that training needs; new weights are drawn from the recipe's seed.

    A model for `sharding` stays on the CPU.
    """
    settings, layerwise = (
        recipe.settings,
        assemble_model(recipe, data_root, CPU if sharding else device),
    )
    task = layerwise.task
    if settings.readout.tokens is not None and not task.has_token_answers:
        raise UserError(
            f"readout.tokens: task {settings.task.name} has one answer per example, not one per "
            "token; "
            "remove readout.tokens"
        )
    reference = (
        task.reference_loss()
        if settings.descent.reference == "auto"
        else settings.descent.reference
    )
    descent = descent_of(settings.descent, layerwise.model.n_layers, reference)
    return TrainingProblem(task, layerwise, make_objective(settings.objective, descent))


def assemble_model(
    recipe: NamedRecipe, data_root: Path | None, device: torch.device
) -> LayerwiseLosses:
    """Build only the task and the model, with its layer losses."""
    settings = recipe.settings
    check_model(settings.model, settings.task, data_root)
    task = build_task(settings.task, data_root, settings.model.tokenizer_source)
    seed_everything(settings.seed)
    return LayerwiseLosses(build_model(settings.model, task, data_root), task).to(device)
