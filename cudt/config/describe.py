"""Every key with its values, default and meaning, taken from the schema: for `cudt recipes show`
and the reference page.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from cudt.config import plugins, recipe, yaml
from cudt.config.schema import Recipe

#: The default of a key that a file has to set.
REQUIRED = "required"
_WORDS = {"string": "text", "boolean": "true or false", "object": "mapping"}
_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class KeyDoc:
    """One key of a YAML file, in plain words."""

    path: str
    """The dotted key, like `descent.dual.learning_rate`."""
    values: str
    """Like `number ≥ 0 and < 1` or `list of integer`."""
    default: str
    """As YAML, or `required`."""
    meaning: str


def describe(schema: type[BaseModel], path: str = "") -> list[KeyDoc]:
    """Every key of a section, those of inner sections included, in the order of the schema."""
    whole = schema.model_json_schema()
    return list(_keys(whole, whole.get("$defs", {}), path))


def describe_recipe() -> list[KeyDoc]:
    """Every key of a recipe, except those of `task` and `model`, which `describe_plugin` lists by
    name.
    """
    return describe(Recipe)


def describe_plugin(kind: str, name: str) -> list[KeyDoc]:
    """The keys of the `task` or `model` section for one task or model."""
    return describe(plugins.section(kind, name), kind)


def summary(schema: type[BaseModel]) -> str:
    """The first paragraph of a section's docstring, on one line."""
    return " ".join((inspect.getdoc(schema) or "").split("\n\n")[0].split())


def resolved_with_docs(loaded: recipe.NamedRecipe) -> list[tuple[KeyDoc, Any]]:
    """Every key of a recipe that has a value, with its documentation."""
    docs = {doc.path: doc for doc in describe(type(loaded.settings))}
    values = recipe.flat(loaded.settings.model_dump(mode="json"))
    return [(docs[key], value) for key, value in values.items() if key in docs]


def _keys(section: dict[str, Any], defined: dict[str, Any], path: str) -> Iterator[KeyDoc]:
    for key, node in section["properties"].items():
        dotted = f"{path}.{key}" if path else key
        inner = [one for one in _alternatives(node, defined) if "properties" in one]
        if not inner or len(_alternatives(node, defined)) > 1:
            default = yaml.dump_line(node["default"]) if "default" in node else REQUIRED
            meaning = " ".join(node.get("description", "").split())
            yield KeyDoc(dotted, _words(node, defined), default, meaning)
        for one in inner:
            yield from _keys(one, defined, dotted)


def _alternatives(node: dict[str, Any], defined: dict[str, Any]) -> list[dict[str, Any]]:
    """The types that a value can have."""
    if "$ref" in node:
        return [defined[node["$ref"].rpartition("/")[2]]]
    found = node.get("anyOf") or node.get("oneOf")
    return [node] if not found else [one for part in found for one in _alternatives(part, defined)]


def _words(node: dict[str, Any], defined: dict[str, Any]) -> str:
    return " or ".join(_phrase(one, defined) for one in _alternatives(node, defined))


def _phrase(node: dict[str, Any], defined: dict[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(map(str, node["enum"]))
    if "const" in node:
        return str(node["const"])
    if "properties" in node:
        return "section"
    if node.get("type") == "array":
        return f"list of {_words(node['items'], defined)}"
    kind = node.get("type", "any value")
    limits = [f"{sign} {node[name]}" for name, sign in _SIGNS.items() if name in node]
    return f"{_WORDS.get(kind, kind)} {' and '.join(limits)}".strip()
