"""Types of the schema in plain words, for errors and reference pages: `a number ≥ 0 and < 1`, for
example.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_NOUNS = {int: ("integer", "integers"), float: ("number", "numbers"), str: ("text", "texts")}
_WITHOUT_ARTICLE = ("text", "true", "null", "one of", "'", "any", "the name")


@dataclass(frozen=True)
class Alternative:
    """One type that a key can have."""

    noun: str
    plural: str
    limits: str = ""
    """The allowed range, like `≥ 0 and < 1`."""
    is_positive: bool = False
    """Whether the range is just that: `a positive integer` reads better than `an integer ≥ 1`."""

    def phrase(self) -> str:
        """With its range: `positive integer`, `number ≥ 0 and < 1`."""
        return f"positive {self.noun}" if self.is_positive else f"{self.noun} {self.limits}".strip()

    def phrases(self) -> str:
        """The same in the plural."""
        return (
            f"positive {self.plural}"
            if self.is_positive
            else f"{self.plural} {self.limits}".strip()
        )


def expected(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a key takes, as an error says it: `a positive integer or null`."""
    return _either([_with_article(one.phrase()) for one in alternatives(annotation, metadata)])


def type_name(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a key takes, without its range: `number, list of numbers or section`."""
    return _either([one.noun for one in alternatives(annotation, metadata)])


def allowed(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """The range of a key, like `≥ 0 and < 1`; empty where every value of its type is allowed."""
    return _either([one.limits for one in alternatives(annotation, metadata) if one.limits])


def choices(annotation: Any) -> list[str]:
    """The words that a key can be, if it is a choice."""
    return [
        str(word)
        for kind in unwrapped(annotation)
        if get_origin(kind) is Literal
        for word in get_args(kind)
    ]


def tagged(annotation: Any, tag: str) -> Any:
    """The alternative of a union that carries a tag; the annotation itself where none does."""
    for kind in _members(annotation):
        if get_origin(kind) is Annotated and any(
            isinstance(one, Tag) and one.tag == tag for one in get_args(kind)[1:]
        ):
            return kind
    return annotation


def alternatives(annotation: Any, metadata: Iterable[Any] = ()) -> list[Alternative]:
    """Each type that a key can have, with its range."""
    found: list[Alternative] = []
    for kind in _members(annotation):
        plain, own = _unwrapped(kind)
        notes = [*own, *metadata]
        nested = alternatives(plain, notes) if _is_union(plain) else [_alternative(plain, notes)]
        found += [one for one in nested if one not in found]
    return found


def unwrapped(annotation: Any) -> list[Any]:
    """The plain types of an annotation, without metadata and null."""
    found: list[Any] = []
    for kind in _members(annotation):
        plain, _ = _unwrapped(kind)
        found += unwrapped(plain) if _is_union(plain) else [plain]
    return [kind for kind in found if kind is not type(None)]


def _alternative(kind: Any, notes: Sequence[Any]) -> Alternative:
    origin = get_origin(kind)
    if name := next((one.in_words for one in notes if hasattr(one, "in_words")), ""):
        return Alternative(name, name)
    if origin is Literal:
        words = ", ".join(repr(word) for word in get_args(kind))
        text = words if len(get_args(kind)) == 1 else f"one of {words}"
        return Alternative(text, text)
    if origin is list:
        inner = alternatives(get_args(kind)[0])
        return Alternative(
            f"list of {_either([one.phrases() for one in inner])}", "lists", _length(notes)
        )
    if origin is dict:
        return Alternative("mapping", "mappings", _length(notes))
    if kind is bool:
        return Alternative("true or false", "true or false")
    if kind is type(None):
        return Alternative("null", "null")
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        required = [key for key, field in kind.model_fields.items() if field.is_required()]
        inside = f" with {' and '.join(f'`{key}`' for key in required)}" if required else ""
        return Alternative(f"section{inside}", f"sections{inside}")
    noun, plural = _NOUNS.get(kind, ("any value", "any values"))
    bounds = _bounds(notes)
    is_positive = bounds == [("gt", 0)] or (kind is int and bounds == [("ge", 1)])
    return Alternative(
        noun, plural, " and ".join(f"{_SIGNS[sign]} {bound}" for sign, bound in bounds), is_positive
    )


def _bounds(notes: Iterable[Any]) -> list[tuple[str, float]]:
    found = []
    for note in _flat(notes):
        for name in _SIGNS:
            if isinstance(bound := getattr(note, name, None), int | float):
                found.append((name, bound))
    return list(dict.fromkeys(found))


def _length(notes: Iterable[Any]) -> str:
    """How many entries a list can have."""
    flat = list(_flat(notes))
    least = next(
        (one.min_length for one in flat if getattr(one, "min_length", None) is not None), None
    )
    most = next(
        (one.max_length for one in flat if getattr(one, "max_length", None) is not None), None
    )
    if most is not None:
        return f"of {least or 0} to {most} entries"
    return "that is not empty" if least else ""


def _flat(notes: Iterable[Any]) -> Iterator[Any]:
    """Constraints, also those that pydantic's `Field(…)` holds."""
    for note in notes:
        yield note
        yield from getattr(note, "metadata", ())


def _members(annotation: Any) -> list[Any]:
    plain, _ = _unwrapped(annotation)
    return list(get_args(plain)) if _is_union(plain) else [annotation]


def _unwrapped(annotation: Any) -> tuple[Any, list[Any]]:
    """A type without `Annotated`, and what it was annotated with."""
    if get_origin(annotation) is Annotated:
        plain, *notes = get_args(annotation)
        return plain, notes
    return annotation, []


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _with_article(phrase: str) -> str:
    if phrase.startswith(_WITHOUT_ARTICLE):
        return phrase
    return f"an {phrase}" if phrase.startswith("integer") else f"a {phrase}"


def _either(parts: Sequence[str]) -> str:
    *first, last = list(dict.fromkeys(parts)) or [""]
    return f"{', '.join(first)} or {last}" if first else last
