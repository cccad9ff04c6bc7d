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
from cudt.data.records import HubSet
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
    """The data problems that the task's module reports; a data set of the hub may be cached or
    downloaded instead.
    """
    module = plugins.load("task", task.name)
    if not hasattr(module, "datasets") or getattr(task, "file", None) is not None:
        return
    part = getattr(task, "subset", None) or ""
    found = [one for one in module.datasets(data_root) if part in one.name.lower() and one.problem]
    source = getattr(module, "SOURCE", None)
    if not isinstance(source, HubSet):
        yield from (f"dataset {one.name}: {one.problem}" for one in found)
    elif found and not hub.is_reachable():
        try:
            source.at(getattr(task, "revision", None)).read("train", module.COLUMNS, data_root)
        except UserError as error:
            yield str(error)
