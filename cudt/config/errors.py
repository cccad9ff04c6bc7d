"""Errors in a YAML file: pydantic's words, with the key, the value and the closest known word; all
of them are reported together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, get_args

from pydantic import BaseModel, ValidationError

from cudt.utils.errors import UserError
from cudt.utils.text import brief, closest, did_you_mean, shown

_MOST_LISTED = 20
#: Characters of one error.
_LONGEST = 600


def refuse(source: str, problems: Sequence[str]) -> NoReturn:
    """Raise a UserError with all problems; `source` is the name of the file."""
    lines = [brief(problem, _LONGEST) for problem in problems]
    if len(lines) == 1:
        raise UserError(f"{source}: {lines[0]}")
    if len(lines) > _MOST_LISTED:
        lines[_MOST_LISTED:] = [f"… and {len(lines) - _MOST_LISTED} more"]
    raise UserError("\n  ".join([f"{source}: {len(problems)} errors", *lines]))


def explain(schema: type[BaseModel], error: ValidationError) -> list[str]:
    """What pydantic found, as `key: problem`. A key that is missing because it is misspelt is one
    problem.
    """
    found, misspelt = dict[tuple[Any, ...], str](), set()
    for one in error.errors(include_url=False):
        # Not in the file: which alternative of a type it is about, or that it is about a key itself.
        path = tuple(part for part in one["loc"] if not str(part).startswith(("<", "[")))
        if one["type"] == "extra_forbidden":
            known = _known_keys(schema, path[:-1])
            misspelt.add((*path[:-1], closest(str(path[-1]), known)))
            found[path] = f"unknown key{did_you_mean(str(path[-1]), known)}"
        else:
            found[path] = _message(dict(one))
    return [
        f"{brief('.'.join(map(str, path)))}: {message}" if path else message
        for path, message in found.items()
        if message != "missing" or path not in misspelt
    ]


def _message(found: dict[str, Any]) -> str:
    kind, value, context = found["type"], found["input"], found.get("ctx", {})
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return str(context["error"])
    words = found["msg"].replace("Input should be", "must be")
    if kind == "model_type":
        words = "must be a section"
    elif kind == "union_tag_invalid":
        words = "must be a " + " or ".join(re.findall(r"<(\w+)>", context["expected_tags"]))
    choices = re.findall(r"'([^']+)'", context.get("expected", ""))
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    return f"{words}, got {shown(value)}{hint}"


def _known_keys(schema: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """The keys of the section that a path leads to."""
    sections = [schema]
    for part in path:
        fields = [one.model_fields[part] for one in sections if part in one.model_fields]
        sections = [one for field in fields for one in _sections(field.annotation)] or sections
    return [key for section in sections for key in section.model_fields]


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in a type, such as those of `dict[str, Arm] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)
