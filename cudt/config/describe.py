"""Every key with its values, default and meaning, taken from the schema: for `cudt recipes show`
and the reference page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from cudt.config import yaml

#: The default of a key that a file has to set.
REQUIRED = "required"
_WORDS = {"string": "text", "boolean": "true or false", "object": "section"}
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
    """Every key of a section, those of inner sections included, in the order of the schema; the
    section is `path` in its file.
    """
    whole = schema.model_json_schema()
    return list(_keys(whole, whole.get("$defs", {}), path and f"{path}."))


def _keys(section: dict[str, Any], defined: dict[str, Any], before: str) -> Iterator[KeyDoc]:
    for key, node in section["properties"].items():
        types = _types(node, defined)
        if "properties" not in types[0] or len(types) > 1:
            default = yaml.dump_line(node["default"]) if "default" in node else REQUIRED
            values = " or ".join(_phrase(one, defined) for one in types)
            yield KeyDoc(before + key, values, default, node["description"].replace("\n", " "))
        for one in types:
            if "properties" in one:
                yield from _keys(one, defined, f"{before}{key}.")


def _types(node: dict[str, Any], defined: dict[str, Any]) -> list[dict[str, Any]]:
    """The types that a value can have."""
    if "$ref" in node:
        return [defined[node["$ref"].rpartition("/")[2]]]
    found = node.get("anyOf") or node.get("oneOf")
    return [one for part in found for one in _types(part, defined)] if found else [node]


def _phrase(node: dict[str, Any], defined: dict[str, Any]) -> str:
    if "enum" in node or "const" in node:
        return ", ".join(map(str, node.get("enum", [node.get("const")])))
    if node.get("type") == "array":
        return f"list of {' or '.join(_phrase(one, defined) for one in _types(node['items'], defined))}"
    kind = node.get("type", "any value")
    limits = [f"{sign} {node[name]}" for name, sign in _SIGNS.items() if name in node]
    return f"{_WORDS.get(kind, kind)} {' and '.join(limits)}".strip()
