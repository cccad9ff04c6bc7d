"""From a recipe to the objects that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from cudt.config.recipe import NamedRecipe
from cudt.config.schema import Descent, TargetLoss
from cudt.method.descent import LayerwiseDescent, rate_for_target, rates_per_layer
from cudt.method.objectives.base import Objective, make_objective
from cudt.models.base import build_model, check_model
from cudt.models.layer_losses import LayerwiseLosses
from cudt.tasks.base import Task, build_task
from cudt.utils import device
from cudt.utils.errors import UserError


@dataclass(frozen=True)
class Experiment:
    """A task, a model that answers it, and what its training minimises."""

    task: Task
    layerwise: LayerwiseLosses
    objective: Objective

    @property
    def descent(self) -> LayerwiseDescent:
        return self.objective.descent


def assemble(recipe: NamedRecipe, data_root: Path | None, place: torch.device) -> Experiment:
    """Build everything; weights are drawn from the recipe's seed."""
    settings, layerwise = recipe.settings, assemble_model(recipe, data_root, place)
    task = layerwise.task
    if settings.readout.tokens is not None and not task.has_token_answers:
        raise UserError(
            f"readout.tokens: task {settings.task.name} has one answer for an example, not one for each token"
        )
    descent = _descent(settings.descent, layerwise.model.n_layers, task, place)
    return Experiment(task, layerwise, make_objective(settings.objective, descent, settings.readout.layers))


def assemble_model(recipe: NamedRecipe, data_root: Path | None, place: torch.device) -> LayerwiseLosses:
    """The model and its task alone."""
    settings = recipe.settings
    check_model(settings.model, settings.task, data_root)
    task = build_task(settings.task, data_root, settings.model.tokenizer_source)
    device.seed_everything(settings.seed)
    return LayerwiseLosses(build_model(settings.model, task, data_root), task).to(place)


def _descent(settings: Descent, n_layers: int, task: Task, place: torch.device) -> LayerwiseDescent:
    reference = task.reference_loss() if settings.reference == "auto" else settings.reference
    if not reference > 0:
        raise UserError(
            f"descent.reference: the best constant answer already has a loss of {reference:g} on the training data; "
            "give more data, or a number above 0"
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
        resilience=settings.resilience,
        beta=settings.beta,
        dual=settings.dual,
        device=place,
    )
