"""`--on`: test data of another task, for runs that were never trained on it.

Keys that tasks of its family share, such as the size of frames, come from the run's own section:
the examples must have the shape of the run's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudt.config import errors, plugins
from cudt.config import recipe as recipes
from cudt.config.schema import NamedSection
from cudt.config.tasks import TextSection, VideoSection
from cudt.utils.errors import UserError


@dataclass(frozen=True)
class OtherData:
    """The test data of the task or the recipe `name`, whose section is `task`."""

    name: str
    task: NamedSection


def named(own: NamedSection, name: str, source: str = "--on") -> OtherData:
    """The test data of a task or a recipe, for a run with the section `own`."""
    values: dict[str, Any] = {"name": name}
    if name not in plugins.names("task"):
        recipe = recipes.load(name)
        name, values = recipe.name, recipe.settings.task.model_dump(mode="json")
    config = plugins.section("task", values["name"])
    for family in (VideoSection, TextSection):
        if isinstance(own, family) and issubclass(config, family):
            # The version of a dataset on the hub belongs to that dataset.
            shared = family.model_fields.keys() - {"name", "revision"}
            values |= own.model_dump(mode="json", include=shared)
            task = errors.validated(config, values, f"{source} {name}")
            if task == own:
                raise UserError(f"{source} {name}: these are the run's own data; name other data")
            return OtherData(name, task)
    raise UserError(
        f"{source} {name}: task {own.name} of the run cannot be tested on data of task "
        f"{values['name']}; name a task with the same kind of examples (videos, or texts with "
        "classes)"
    )
