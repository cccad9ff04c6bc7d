"""Which data and weights an experiment is missing, found without loading or downloading anything."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from cudt.config import registry
from cudt.config.recipe import NamedRecipe
from cudt.data import hub
from cudt.data.hub import DEFAULT_ROOT
from cudt.data.records import HubSet
from cudt.models.base import check_model
from cudt.reproduce.scale import Completions, Experiment
from cudt.utils.errors import UserError


def missing(experiment: Experiment, data_root: Path | None) -> list[str]:
    """What an experiment cannot run without, and how to get it; empty if nothing is missing."""
    recipe = experiment.sweep.first_recipe
    return list(dict.fromkeys([*_weights(recipe, data_root), *_data(recipe, data_root)]))


def instructions_file(asked: Completions, data_root: Path | None) -> Path:
    return (data_root or DEFAULT_ROOT) / asked.instructions


def missing_instructions(experiment: Experiment, data_root: Path | None) -> list[str]:
    """What only the completions are missing, and how to get it."""
    asked = experiment.listed.completions
    if asked is None or instructions_file(asked, data_root).is_file():
        return []
    file = instructions_file(asked, data_root)
    how = f"; {asked.get.replace('FOLDER', shlex.quote(str(file.parent)))}" if asked.get else ""
    return [f"completions: file {file} does not exist{how}"]


def _weights(recipe: NamedRecipe, data_root: Path | None) -> Iterator[str]:
    settings = recipe.settings
    try:
        check_model(settings.model, settings.task, data_root)
        if settings.model.tokenizer_source is not None:
            hub.check(settings.model.tokenizer_source, data_root)
    except UserError as error:
        yield str(error)


def _data(recipe: NamedRecipe, data_root: Path | None) -> Iterator[str]:
    """The data problems that the task's module reports; a data set of the hub may be cached or downloaded instead."""
    task = recipe.settings.task
    module = registry.load("task", task.name)
    if not hasattr(module, "datasets") or getattr(task, "file", None) is not None:
        return
    part = getattr(task, "subset", None) or ""
    found = [one for one in module.datasets(data_root) if part in one.name.lower() and one.problem]
    source = getattr(module, "SOURCE", None)
    if not isinstance(source, HubSet):
        yield from (f"dataset {one.name}: {one.problem}" for one in found)
    elif found and not hub.is_reachable():
        try:
            source.read("train", module.COLUMNS, data_root)
        except UserError as error:
            yield str(error)
