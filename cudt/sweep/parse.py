"""Parse a search file; parts that violate the schema are left out, so that the rest can be checked."""

from __future__ import annotations

import copy
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from pydantic import ValidationError

from cudt.config import mistakes
from cudt.config.mistakes import Mistake
from cudt.sweep.search import Search

_ANY_SCORE = {"measure": "metric", "direction": "maximize"}


class Parsed(NamedTuple):
    """A search file as far as it is valid."""

    search: Search | None
    """The file without the parts that violate the schema; None if too little is left."""
    mistakes: list[Mistake]
    """The schema errors."""
    broken: frozenset[str]
    """Their keys: errors that only follow from these are not reported."""


def parse(values: dict[str, Any]) -> Parsed:
    """The search file, and its schema errors."""
    try:
        return Parsed(Search.model_validate(values), [], frozenset())
    except ValidationError as error:
        found = mistakes.explain(Search, error)
    valid = copy.deepcopy(values)
    for mistake in found:
        _cut_out(valid, mistake.path)
    broken = frozenset(mistake.key for mistake in found)
    try:
        return Parsed(Search.model_validate(valid), found, broken)
    except ValidationError:
        return Parsed(None, found, broken)


def _cut_out(values: dict[str, Any], path: Sequence[Any]) -> None:
    """Remove the smallest optional part that contains an error."""
    match path:
        case ["score", *_]:
            values["score"] = _ANY_SCORE
        case ["arms", _, "search" | "fixed", _, *_]:
            _remove(values, path[:4])
        case ["arms", _, "sampler", *_]:
            _remove(values, path[:2])
        case ["arms", _, _, *_]:
            _remove(values, path[:3])
        case ["arms" | "settings" | "fixed", _, *_]:
            _remove(values, path[:2])
        case [_, *_]:
            _remove(values, path[:1])


def _remove(values: Any, path: Sequence[Any]) -> None:
    """Remove the value at a path, unless an earlier error removed it already."""
    *sections, last = path
    for key in sections:
        values = values.get(key) if isinstance(values, dict) else None
    if isinstance(values, dict):
        values.pop(last, None)


def contains(outer: str, inner: str) -> bool:
    """Whether a dotted key is another one, or a section that contains it."""
    return inner == outer or inner.startswith(f"{outer}.")


def is_broken(key: str, broken: Set[str]) -> bool:
    """Whether there is an error at a key, or below it."""
    return any(contains(key, other) for other in broken)
