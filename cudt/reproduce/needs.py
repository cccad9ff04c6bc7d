"""Which data and weights an experiment is missing, found without loading or downloading
anything.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from cudt.config import other_data
from cudt.config.recipe import NamedRecipe
from cudt.data import hub
from cudt.data.hub import DEFAULT_ROOT
from cudt.models.base import check_model
from cudt.reproduce.scale import Completions, Experiment
from cudt.tasks.base import missing_data
from cudt.utils.errors import UserError


def missing(experiment: Experiment, data_root: Path | None) -> list[str]:
    """What an experiment cannot run without, and how to get it; empty if nothing is missing."""
    return missing_for_recipe(experiment.sweep.first_recipe, data_root)


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


def available_other(experiment: Experiment, data_root: Path | None) -> list[str]:
    """The other data, by the names in the scale, whose test data are here."""
    return [
        name
        for name in dict.fromkeys(experiment.listed.on)
        if not _missing_of(experiment, name, data_root)
    ]


def missing_other(experiment: Experiment, data_root: Path | None) -> list[str]:
    """What only evaluations on other data are missing, and how to get it."""
    found = {name: _missing_of(experiment, name, data_root) for name in experiment.listed.on}
    return [f"on {name}: {problem}" for name, problems in found.items() for problem in problems]


def _missing_of(experiment: Experiment, name: str, data_root: Path | None) -> list[str]:
    own = experiment.sweep.first_recipe.settings.task
    problem = missing_data(other_data.named(own, name, "on").task, data_root)
    return [problem] if problem else []


def missing_for_recipe(recipe: NamedRecipe, data_root: Path | None) -> list[str]:
    """What a recipe cannot be trained without, and how to get it; empty if nothing is missing."""
    settings, found = recipe.settings, []
    try:
        check_model(settings.model, settings.task, data_root)
        if settings.model.tokenizer_source is not None:
            hub.check(settings.model.tokenizer_source, data_root)
    except UserError as error:
        found.append(str(error))
    problem = missing_data(settings.task, data_root)
    return list(dict.fromkeys([*found, *([problem] if problem else [])]))
