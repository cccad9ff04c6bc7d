"""Errors in a YAML file as values: which key, which value, what is wrong; and how they are printed,
all together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, NoReturn, get_args, get_origin

from pydantic import BaseModel, ValidationError

from cudt.config import plain_types
from cudt.utils.errors import UserError, closest, did_you_mean
from cudt.utils.shown import brief, shown

#: Errors of a file that are explained: a file that is not a recipe may have thousands.
_MOST_EXPLAINED = 100
_MOST_LISTED = 20
#: Characters of an error, and of all errors of a file.
_LONGEST, _LONGEST_LIST = 600, 1800
#: Ends the path of a pydantic error that is about a mapping's key rather than its value.
_OF_A_KEY = "[key]"


class _NoValue:
    def __repr__(self) -> str:
        return "NO_VALUE"


#: The value of a mistake for which printing one would not help, like a missing key.
NO_VALUE: Final = _NoValue()


@dataclass(frozen=True)
class Mistake:
    """One error in a file."""

    path: tuple[str | int, ...]
    """The keys, and positions in lists, that lead to it; empty for the file as a whole."""
    value: Any = field(hash=False)
    """What the file says there, or NO_VALUE."""
    message: str
    """What is wrong, without the value."""
    kind: str = ""
    """Pydantic's name for it, like `int_type`; empty for errors that cudt finds itself."""
    meant: str = ""
    """For an unknown key, the known one that it is closest to."""

    @property
    def key(self) -> str:
        """The path as a dotted key, like `training.epochs`."""
        return ".".join(map(str, self.path))

    def under(self, *path: str | int) -> Mistake:
        """The same mistake, with the keys that lead to its section put before its path."""
        return replace(self, path=(*path, *self.path))

    def __str__(self) -> str:
        where = f"{brief(self.key)}: " if self.path else ""
        got = "" if self.value is NO_VALUE else f", got {shown(self.value)}"
        return f"{where}{self.message}{got}"


def refuse(source: str, mistakes: Sequence[Mistake | str]) -> NoReturn:
    """Raise a UserError with all mistakes; `source` is the name of the file."""
    lines = [brief(str(mistake), _LONGEST) for mistake in mistakes]
    if len(lines) == 1:
        raise UserError(f"{source}: {lines[0]}")
    text = f"{source}: {len(lines)} errors"
    for number, line in enumerate(lines):
        if number == _MOST_LISTED or (number and len(text) + len(line) > _LONGEST_LIST):
            text += f"\n  … and {len(lines) - number} more"
            break
        text += f"\n  {line}"
    raise UserError(text)


def explain(schema: type[BaseModel], error: ValidationError) -> list[Mistake]:
    """The mistakes that pydantic found, in words for the person who wrote the file.

    A key that is missing because it is misspelt is one mistake, not two.
    """
    found = [
        _explain(schema, dict(one)) for one in error.errors(include_url=False)[:_MOST_EXPLAINED]
    ]
    misspelt = {(*one.path[:-1], one.meant) for one in found if one.meant}
    return [one for one in found if one.kind != "missing" or one.path not in misspelt]


def is_tag(part: Any) -> bool:
    """Whether part of a pydantic path names a type of a union, like `<list>`; the file has no such
    key.
    """
    return isinstance(part, str) and part.startswith("<") and part.endswith(">")


def _explain(schema: type[BaseModel], found: dict[str, Any]) -> Mistake:
    location, kind, value = found["loc"], found["type"], found["input"]
    path = tuple(part for part in location if not is_tag(part) and part != _OF_A_KEY)
    if _OF_A_KEY in location:
        return Mistake(path, NO_VALUE, "expected text as a key; put it in quotes", kind)
    if kind == "missing":
        return Mistake(path, NO_VALUE, "missing", kind)
    target = _find(schema, location)
    if kind == "extra_forbidden":
        meant = closest(str(path[-1]), target.section.model_fields)
        hint = f"; did you mean '{meant}'?" if meant else ""
        return Mistake(path, NO_VALUE, f"unknown key{hint}", kind, meant=meant)
    if kind == "value_error":
        return Mistake(path, NO_VALUE, str(found["ctx"]["error"]), kind)
    hint = (
        did_you_mean(value, plain_types.choices(target.annotation))
        if isinstance(value, str)
        else ""
    )
    if hint:
        # The hint has to follow the value.
        return Mistake(path, NO_VALUE, f"expected {target.words}, got {shown(value)}{hint}", kind)
    return Mistake(path, value, f"expected {target.words}", kind)


class _Target(NamedTuple):
    """What the schema says about a key."""

    section: type[BaseModel]
    annotation: Any
    metadata: Sequence[Any]

    @property
    def words(self) -> str:
        return plain_types.expected(self.annotation, self.metadata)


def _find(schema: type[BaseModel], location: Sequence[Any]) -> _Target:
    """The section that holds the last key of a pydantic path, and the type that is expected
    there.
    """
    found = _Target(schema, schema, ())
    last = len(location) - 1
    for index, part in enumerate(location):
        if is_tag(part):
            # An error about the value itself is explained with every alternative of the union.
            if index != last:
                found = found._replace(
                    annotation=plain_types.tagged(found.annotation, part), metadata=()
                )
        elif isinstance(part, int):
            inner = [
                get_args(kind)[0]
                for kind in plain_types.unwrapped(found.annotation)
                if get_origin(kind) is list
            ]
            found = found._replace(annotation=inner[0] if inner else found.annotation, metadata=())
        elif (next_one := _step(found, part)) is not None:
            found = next_one
        else:
            break
    return found


def _step(found: _Target, key: str) -> _Target | None:
    """Go from a section or a mapping to one of its keys; None where the schema does not know the
    key.
    """
    kinds = plain_types.unwrapped(found.annotation)
    for kind in kinds:
        if get_origin(kind) is dict:
            # The file's author chose the key.
            return found._replace(annotation=get_args(kind)[1], metadata=())
    for section in _sections(kinds):
        if (known := section.model_fields.get(key)) is not None:
            return _Target(section, known.annotation, tuple(known.metadata))
    return next((found._replace(section=section) for section in _sections(kinds)), None)


def _sections(kinds: Sequence[Any]) -> Iterator[type[BaseModel]]:
    yield from (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
