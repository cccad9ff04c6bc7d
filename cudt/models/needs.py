"""Which data and weights a recipe is missing, found without downloading anything, and without
torch.

A data set of the hub that is not in the data root is read from the hub's cache if the hub is away.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cudt.config import plugins
from cudt.config.recipe import NamedRecipe
from cudt.config.schema import ModelSection, NamedSection
from cudt.data import hub
from cudt.tasks.base import status_of
from cudt.utils.errors import UserError


def check_model(config: ModelSection, task: NamedSection, data_root: Path | None) -> None:
    """Refuse a model and a task that do not fit together, before the task's data are read (which
    can take an hour).
    """
    module = plugins.load("model", config.name)
    if hasattr(module, "check"):
        module.check(config, task, data_root)


def missing(recipe: NamedRecipe, data_root: Path | None) -> list[str]:
    """What a recipe cannot be trained without, and how to get it; empty if nothing is missing."""
    return list(
        dict.fromkeys(
            [*_weights(recipe, data_root), *missing_data(recipe.settings.task, data_root)]
        )
    )


def _weights(recipe: NamedRecipe, data_root: Path | None) -> Iterator[str]:
    settings = recipe.settings
    try:
        check_model(settings.model, settings.task, data_root)
        if settings.model.tokenizer_source is not None:
            hub.check(settings.model.tokenizer_source, data_root)
    except UserError as error:
        yield str(error)


def missing_data(task: NamedSection, data_root: Path | None) -> Iterator[str]:
    """What is missing of a task's published data, unless the hub or its cache has it."""
    found = status_of(task, data_root)
    if found is not None and found.problem and not found.is_elsewhere:
        yield f"dataset {found.name}: {found.problem}"
