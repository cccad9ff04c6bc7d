"""Test data of another task, for runs that were never trained on it.

The other task gets the keys that tasks of its family share, such as the size of frames, from the
run's own section: its examples must have the shape of the run's. All other keys, such as a folder,
are its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cudt.config import errors, plugins
from cudt.config import recipe as recipes
from cudt.config.recipe import checked_name
from cudt.config.schema import NamedSection
from cudt.config.tasks import HubSection
from cudt.tasks.base import Task, build_unread
from cudt.tasks.text_classification import TextConfig
from cudt.tasks.video_denoising import VideoConfig
from cudt.utils.errors import UserError, did_you_mean
from cudt.utils.shown import shown

#: The beginning of the name of the folder of results.
PREFIX = "on-"


@dataclass(frozen=True)
class OtherData:
    """The test data of another task: of the task or the recipe `name`, whose section is `task`."""

    name: str
    task: NamedSection

    @property
    def folder(self) -> str:
        """The name of the folder of results."""
        return PREFIX + self.name

    def put_into(self, task: Task, data_root: Path | None, pretrained: str | None) -> Task:
        """The task of a run with the other task's test data; its training data are not read, unless
        they must be.
        """
        return task.tested_on(build_unread(self.task, data_root, pretrained))


def named(own: NamedSection, name_or_file: str, source: str = "--on") -> OtherData:
    """The test data of a recipe or a task, for a run with the section `own`; a UserError if they do
    not fit it.

    `source` is the key or option that names it.
    """
    where = f"{source} {name_or_file}"
    name, given = _section(name_or_file, source)
    config = plugins.section("task", given["name"])
    family = next(
        (
            one
            for one in (VideoConfig, TextConfig)
            if isinstance(own, one) and issubclass(config, one)
        ),
        None,
    )
    if family is None:
        raise UserError(
            f"{where}: task {own.name} of the run cannot be tested on data of task "
            f"{given['name']}; "
            "name a task with the same kind of examples (video, or texts with classes)"
        )
    # The version of a dataset on the hub belongs to that dataset.
    shared = family.model_fields.keys() - HubSection.model_fields.keys()
    task = _validated({**given, **own.model_dump(mode="json", include=shared)}, where)
    if task == own:
        raise UserError(f"{where}: these are the run's own test data; name other data")
    return OtherData(name, task)


def stored(folder: Path, values: dict[str, Any]) -> OtherData:
    """The data that the results in a folder are of; `values` is the section that is noted there."""
    return OtherData(folder.name.removeprefix(PREFIX), _validated(values, str(folder)))


def _section(name_or_file: str, source: str) -> tuple[str, dict[str, Any]]:
    """The name and the task section of a recipe; of a task, a section with nothing but its name."""
    if (
        name_or_file.endswith((".yaml", ".yml"))
        or "/" in name_or_file
        or name_or_file in recipes.names()
    ):
        recipe = recipes.load(name_or_file)
        return recipe.name, recipe.settings.task.model_dump(mode="json")
    if plugins.problem("task", name_or_file):
        hint = (
            did_you_mean(name_or_file, [*plugins.names("task"), *recipes.names()])
            or "; `cudt recipes` lists them"
        )
        raise UserError(f"{source}: no recipe or task is called {shown(name_or_file)}{hint}")
    return checked_name(name_or_file, source), {"name": name_or_file}


def _validated(values: dict[str, Any], source: str) -> NamedSection:
    config: type[NamedSection] = plugins.section("task", str(values.get("name")))
    try:
        return config.model_validate(values)
    except ValidationError as error:
        errors.refuse(source, errors.explain(config, error))
