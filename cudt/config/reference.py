"""Documentation of every key, taken from the schema: for `cudt recipes show` and the reference
pages.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cudt.config import plain_types, plugins, strict_yaml
from cudt.config.recipe import NamedRecipe
from cudt.config.schema import Recipe

#: The default of a key that a file has to set.
REQUIRED = "required"


@dataclass(frozen=True)
class KeyDoc:
    """One key of a YAML file, in plain words."""

    path: str
    """The dotted key, like `descent.dual.learning_rate`."""
    type: str
    """Like `number` or `list of integers`."""
    default: str
    """As YAML, or `required`."""
    range: str
    """The allowed values, like `≥ 0 and < 1`; empty where every value of the type is allowed."""
    meaning: str


@dataclass(frozen=True)
class Setting:
    """One key of a recipe with its value and its documentation."""

    doc: KeyDoc
    value: Any
    is_default: bool


def describe(schema: type[BaseModel], path: str = "") -> list[KeyDoc]:
    """Every key of a section, those of inner sections included, in the order of the schema."""
    return list(_keys(schema, path))


def describe_recipe() -> list[KeyDoc]:
    """Every key of a recipe, except those of `task` and `model`, which `describe_plugin` lists by
    name.
    """
    return describe(Recipe)


def describe_plugin(kind: str, name: str) -> list[KeyDoc]:
    """The keys of the `task` or `model` section for one task or model; imports the file that
    implements it.
    """
    return describe(plugins.section(kind, name), kind)


def summary(schema: type[BaseModel]) -> str:
    """The first paragraph of a section's docstring, on one line."""
    return " ".join((inspect.getdoc(schema) or "").split("\n\n")[0].split())


def resolved_with_docs(recipe: NamedRecipe) -> list[Setting]:
    """Every key of a recipe with its value, whether that is the default, and its documentation."""
    found = []
    for doc in describe(type(recipe.settings)):
        *sections, last = doc.path.split(".")
        values: Any = recipe.resolved()
        for key in sections:
            values = values.get(key) if isinstance(values, dict) else None
        # A key of an alternative that the recipe does not use has no value, like
        # `descent.alpha.target_loss`.
        if isinstance(values, dict) and last in values:
            found.append(
                Setting(doc, values[last], doc.default == strict_yaml.dump_line(values[last]))
            )
    return found


def _keys(schema: type[BaseModel], path: str) -> Iterator[KeyDoc]:
    for key, field in schema.model_fields.items():
        dotted = f"{path}.{key}" if path else key
        sections = [kind for kind in plain_types.unwrapped(field.annotation) if _is_section(kind)]
        has_other_kinds = len(plain_types.alternatives(field.annotation)) > len(sections)
        if has_other_kinds or not sections:
            yield _key(dotted, field)
        for section in sections:
            yield from _keys(section, dotted)


def _key(path: str, field: FieldInfo) -> KeyDoc:
    kinds = field.annotation, tuple(field.metadata)
    default = (
        REQUIRED
        if field.is_required()
        else strict_yaml.dump_line(_plain(field.get_default(call_default_factory=True)))
    )
    meaning = " ".join((field.description or "").split())
    return KeyDoc(
        path, plain_types.type_name(*kinds), default, plain_types.allowed(*kinds), meaning
    )


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
