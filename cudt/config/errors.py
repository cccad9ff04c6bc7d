"""Errors in a YAML file: pydantic's words, with the key, the value and the closest known word; all
of them are reported together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from cudt.utils.errors import UserError
from cudt.utils.text import closest, did_you_mean, shown

Schema = TypeVar("Schema", bound=BaseModel)
#: The parts of a dotted key.
Key = tuple[Any, ...]


def validated(schema: type[Schema], values: dict[str, Any], source: str) -> Schema:
    """The typed values of a file, which errors call `source`."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        problems = explain(schema, values, error)
    if len(problems) == 1:
        raise UserError(f"{source}: {problems[0]}")
    raise UserError("\n  ".join([f"{source}: {len(problems)} errors", *problems]))


def explain(schema: type[BaseModel], values: dict[str, Any], error: ValidationError) -> list[str]:
    """What pydantic found, as `key: problem`. A key that is missing because it is misspelt is one
    problem, and so is a value that has none of the types that its key can have.
    """
    found, misspelt = dict[Key, list[Any]](), set[Key]()
    for one in error.errors(include_url=False):
        key = _key(one["loc"], values, one["type"] == "missing")
        found.setdefault(key, []).append(one)
        if one["type"] == "extra_forbidden":
            misspelt.add((*key[:-1], closest(str(key[-1]), _known_keys(schema, key[:-1]))))
    problems = []
    for key, errors in found.items():
        if errors[0]["type"] == "missing" and key in misspelt:
            continue
        # A value that could be of several types is meant as the one that it fits in part.
        if any(key == other[: len(key)] for other in found if other != key):
            continue
        if errors[0]["type"] == "extra_forbidden":
            message = f"unknown key{did_you_mean(str(key[-1]), _known_keys(schema, key[:-1]))}"
        else:
            message = _message(errors)
        problems.append(f"{'.'.join(map(str, key))}: {message}" if key else message)
    return problems


def _key(location: Key, values: Any, is_missing: bool) -> Key:
    """The key of a location, which also names the types that pydantic tried."""
    key: list[Any] = []
    for part in location:
        is_item = isinstance(values, list) and isinstance(part, int)
        if is_item or (isinstance(values, dict) and part in values):
            key.append(part)
            values = values[part]
    return (*key, location[-1]) if is_missing else tuple(key)


def _message(errors: Sequence[Any]) -> str:
    """The problem with a value, from one error for each type that it could have."""
    kind, value = errors[0]["type"], errors[0]["input"]
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return str(errors[0]["ctx"]["error"])
    # A value that has one of the types, but is out of its range, is meant as that.
    meant = [one for one in errors if not one["type"].endswith(("_type", "literal_error"))]
    each = (re.sub(r"^\w+ should", "must", one["msg"]) for one in meant or errors)
    words = re.sub(r"valid dictionary or instance of \w+", "section", " or ".join(each))
    hint = did_you_mean(value, re.findall(r"'([^']+)'", words)) if isinstance(value, str) else ""
    return f"{words.replace(' or must be ', ' or ')}, got {shown(value)}{hint}"


def _known_keys(schema: type[BaseModel], key: Key) -> list[str]:
    """The keys of the section that a key leads to."""
    sections = [schema]
    for part in key:
        fields = [one.model_fields[part] for one in sections if part in one.model_fields]
        sections = [one for field in fields for one in _sections(field.annotation)] or sections
    return [name for section in sections for name in section.model_fields]


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in a type, such as those of `dict[str, Arm] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)
