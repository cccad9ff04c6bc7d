"""Test data of another task, for runs that were never trained on it (`cudt eval-ood --on`).

The other task gets the keys that tasks of its family share, such as the size of frames, from the
run's own section: its examples must have the shape of the run's. All other keys are its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from cudt.config import errors, plugins
from cudt.config import recipe as recipes
from cudt.config.recipe import checked_name
from cudt.config.schema import NamedSection
from cudt.config.tasks import HubSection, TextSection, VideoSection
from cudt.utils.errors import UserError


@dataclass(frozen=True)
class OtherData:
    """The test data of another task: its name in tables, and its section of a recipe."""

    name: str
    task: NamedSection


def named(own: NamedSection, name_or_file: str, source: str = "--on") -> OtherData:
    """The test data of a recipe or a task, for a run with the section `own`; a UserError if they do
    not fit it. `source` is the key or option that names it.
    """
    where = f"{source} {name_or_file}"
    is_file = "/" in name_or_file or name_or_file.endswith((".yaml", ".yml"))
    if is_file or name_or_file in recipes.names():
        recipe = recipes.load(name_or_file)
        name, given = recipe.name, recipe.settings.task.model_dump(mode="json")
    else:
        name, given = checked_name(name_or_file, source), {"name": name_or_file}
    config = plugins.section("task", given["name"])
    families = (VideoSection, TextSection)
    family = next((f for f in families if isinstance(own, f) and issubclass(config, f)), None)
    if family is None:
        raise UserError(
            f"{where}: task {own.name} of the run cannot be tested on data of task "
            f"{given['name']}; name a task with the same kind of examples (video, or texts with "
            "classes)"
        )
    # The version of a dataset on the hub belongs to that dataset.
    shared = family.model_fields.keys() - HubSection.model_fields.keys()
    try:
        task = config.model_validate({**given, **own.model_dump(mode="json", include=shared)})
    except ValidationError as error:
        errors.refuse(where, errors.explain(config, error))
    if task == own:
        raise UserError(f"{where}: these are the run's own test data; name other data")
    return OtherData(name, task)
