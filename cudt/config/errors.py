"""Errors in a YAML file: pydantic's words, with the key, the value and the closest known word; all
of them are reported together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

from pydantic import BaseModel, ValidationError

from cudt.utils.errors import UserError
from cudt.utils.text import brief, closest, did_you_mean, shown

_MOST_LISTED = 20
#: Characters of one error.
_LONGEST = 600


@dataclass(frozen=True)
class Mistake:
    """One error in a file."""

    path: tuple[str | int, ...]
    """The keys, and positions in lists, that lead to it; empty for the file as a whole."""
    message: str
    kind: str = ""
    """Pydantic's name for it, like `int_type`; empty for errors that cudt finds itself."""

    @property
    def key(self) -> str:
        """The path as a dotted key, like `training.epochs`."""
        return ".".join(map(str, self.path))

    def __str__(self) -> str:
        return f"{brief(self.key)}: {self.message}" if self.path else self.message


def refuse(source: str, mistakes: Sequence[Mistake | str]) -> NoReturn:
    """Raise a UserError with all mistakes; `source` is the name of the file."""
    lines = [brief(str(mistake), _LONGEST) for mistake in mistakes]
    if len(lines) == 1:
        raise UserError(f"{source}: {lines[0]}")
    if len(lines) > _MOST_LISTED:
        lines[_MOST_LISTED:] = [f"… and {len(lines) - _MOST_LISTED} more"]
    raise UserError("\n  ".join([f"{source}: {len(mistakes)} errors", *lines]))


def explain(schema: type[BaseModel], error: ValidationError) -> list[Mistake]:
    """The mistakes that pydantic found. A key that is missing because it is misspelt is one."""
    found, misspelt = [], set()
    for one in error.errors(include_url=False):
        path, kind = tuple(part for part in one["loc"] if not _is_tag(part)), one["type"]
        if kind == "extra_forbidden":
            meant = closest(str(path[-1]), _known_keys(schema, path[:-1]))
            misspelt.add((*path[:-1], meant))
        found.append(Mistake(path, _message(schema, path, dict(one)), kind))
    return [one for one in found if one.kind != "missing" or one.path not in misspelt]


def _message(schema: type[BaseModel], path: tuple[Any, ...], found: dict[str, Any]) -> str:
    kind, value, context = found["type"], found["input"], found.get("ctx", {})
    if kind == "missing":
        return "missing"
    if kind == "extra_forbidden":
        return f"unknown key{did_you_mean(str(path[-1]), _known_keys(schema, path[:-1]))}"
    if kind == "value_error":
        return str(context["error"])
    words = found["msg"].replace("Input should be", "must be")
    if kind == "model_type":
        words = "must be a section"
    elif kind == "union_tag_invalid":
        tags = re.findall(r"<(\w+)>", context["expected_tags"])
        words = f"must be a {' or '.join(tags)}"
    choices = re.findall(r"'([^']+)'", context.get("expected", ""))
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    return f"{words}, got {shown(value)}{hint}"


def _is_tag(part: Any) -> bool:
    """Whether part of a pydantic path is no key of the file: the kind of a union's value, or that
    it is about a key itself.
    """
    return isinstance(part, str) and part.startswith(("<", "["))


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
