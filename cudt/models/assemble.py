"""Builds the objects that a recipe describes: task, model, layer losses, constraints and objective."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from cudt.config.recipe import NamedRecipe
from cudt.config.schema import Descent, TargetLoss
from cudt.method.constraints import rate_for_target, rates_per_layer
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives.base import Objective, make_objective
from cudt.models.base import build_model, check_model
from cudt.models.layer_losses import LayerwiseLosses
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


def assemble(recipe: NamedRecipe, data_root: Path | None, device: torch.device) -> TrainingProblem:
    """Build everything that training needs; new weights are drawn from the recipe's seed."""
    settings, layerwise = recipe.settings, assemble_model(recipe, data_root, device)
    task = layerwise.task
    if settings.readout.tokens is not None and not task.has_token_answers:
        raise UserError(
            f"readout.tokens: task {settings.task.name} has one answer per example, not one per token; "
            "remove readout.tokens"
        )
    descent = _descent(settings.descent, layerwise.model.n_layers, task, device)
    return TrainingProblem(task, layerwise, make_objective(settings.objective, descent, settings.readout.layers))


def assemble_model(recipe: NamedRecipe, data_root: Path | None, device: torch.device) -> LayerwiseLosses:
    """Build only the task and the model, with its layer losses."""
    settings = recipe.settings
    check_model(settings.model, settings.task, data_root)
    task = build_task(settings.task, data_root, settings.model.tokenizer_source)
    seed_everything(settings.seed)
    return LayerwiseLosses(build_model(settings.model, task, data_root), task).to(device)


def _descent(settings: Descent, n_layers: int, task: Task, device: torch.device) -> LayerwiseDescent:
    reference = task.reference_loss() if settings.reference == "auto" else settings.reference
    if not reference > 0:
        raise UserError(
            f"descent.reference: 'auto' gives f_0 = {reference:g}, the loss of the best constant answer on the "
            "training data, and f_0 must be above 0; use more training data, or set descent.reference to a number"
        )
    try:
        if isinstance(settings.alpha, TargetLoss):
            rates = [rate_for_target(settings.alpha.target_loss, reference, n_layers)] * n_layers
        else:
            rates = rates_per_layer(settings.alpha, n_layers)
    except ValueError as error:
        raise UserError(f"descent.alpha: {error}") from None
    return LayerwiseDescent(
        n_layers,
        rates,
        reference,
        form=settings.form,
        gradient=settings.gradient,
        resilience=settings.resilience,
        beta=settings.beta,
        decay=settings.decay,
        dual=settings.dual,
        device=device,
        # The trainer checks losses together with gradients, and reports the update in which they fail.
        check_finite=False,
    )
