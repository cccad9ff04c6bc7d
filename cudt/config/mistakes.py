"""From what pydantic finds wrong with a file to lines for a person: path, value, what is allowed, the nearest word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from cudt.utils.errors import UserError, did_you_mean

#: How pydantic ends the path of a mapping's key, where that is what is wrong.
_OF_A_KEY = "[key]"
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def refuse(source: str, mistakes: Sequence[str]) -> NoReturn:
    """All mistakes at once."""
    if len(mistakes) == 1:
        raise UserError(f"{source}: {mistakes[0]}")
    raise UserError(f"{source}: {len(mistakes)} mistakes" + "".join(f"\n  {mistake}" for mistake in mistakes))


def explain(schema: type[BaseModel], error: ValidationError, whole: str) -> list[str]:
    """A line for each mistake; `whole` is what the file is called where none of its keys is to blame."""
    return [_explain(schema, dict(mistake), whole) for mistake in error.errors(include_url=False)]


def is_tag(key: Any) -> bool:
    """Whether part of a path names a type of a union: it says nothing to a reader, and no key is called so."""
    return isinstance(key, str) and key.startswith("<") and key.endswith(">")


def location(mistake: Mapping[str, Any]) -> list[Any]:
    """The keys and places in lists that lead to what is wrong, as the file's writer knows them."""
    return [part for part in mistake["loc"] if not is_tag(part) and part != _OF_A_KEY]


def _explain(schema: type[BaseModel], mistake: dict[str, Any], whole: str) -> str:
    parts = location(mistake)
    path = ".".join(str(part) for part in parts) or whole
    if _OF_A_KEY in mistake["loc"]:
        return f"{path}: a key is a word; put it in quotes"
    if mistake["type"] == "missing":
        return f"{path}: missing"
    section, field = _find_field(schema, parts)
    value = mistake["input"]
    if mistake["type"] == "extra_forbidden":
        return f"{path} = {value!r}: unknown key{did_you_mean(str(parts[-1]), section.model_fields)}"
    context = mistake.get("ctx", {})
    if mistake["type"] == "value_error":
        return f"{path}: {context['error']}"
    # Of a section pydantic says `a valid dictionary or instance of Arm`: nobody can write an instance into a file.
    message = (mistake["msg"][0].lower() + mistake["msg"][1:]).partition(" or instance of ")[0]
    if mistake["type"] == "literal_error":
        message = f"must be {context['expected']}{_nearest(value, context['expected'])}"
    bounds = _allowed_range(field)
    return f"{path} = {value!r}: {message}" + (f" (allowed: {bounds})" if bounds else "")


def _nearest(value: Any, expected: str) -> str:
    return did_you_mean(str(value), [word.strip("' ") for part in expected.split(",") for word in part.split(" or ")])


def _find_field(schema: type[BaseModel], location: Sequence[Any]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The section class that holds the last key of a path, and that key's field where there is one."""
    section: type[BaseModel] = schema
    field: FieldInfo | None = None
    annotation: Any = schema
    for key in location:
        if isinstance(key, int):
            # A place in a list.
            inner = [get_args(kind)[0] for kind in _kinds(annotation) if get_origin(kind) is list]
            annotation = inner[0] if inner else annotation
            continue
        kinds = list(_kinds(annotation))
        values = [get_args(kind)[1] for kind in kinds if get_origin(kind) is dict]
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if values:
            # Under a key that the file's writer chose.
            annotation, field = values[0], None
            continue
        if not sections:
            break
        section = next((one for one in sections if key in one.model_fields), sections[0])
        field = section.model_fields.get(key)
        if field is None:
            break
        annotation = field.annotation
    return section, field


def _kinds(annotation: Any) -> Iterator[Any]:
    """A type, or the types that it is one of: an optional section is one of two, say."""
    yield annotation
    if get_origin(annotation) not in (dict, list):
        for inner in get_args(annotation):
            yield from _kinds(inner)


def _allowed_range(field: FieldInfo | None) -> str:
    """`≥ 0, < 1` from the bounds that a field, or a part of its type, declares."""
    if field is None:
        return ""
    found: dict[str, None] = {}
    pending: list[Any] = [*field.metadata, field.annotation]
    while pending:
        item = pending.pop(0)
        for name, sign in _BOUNDS.items():
            if isinstance(bound := getattr(item, name, None), int | float):
                found[f"{sign} {bound}"] = None
        pending += getattr(item, "metadata", []) if not isinstance(item, type) else []
        pending += getattr(item, "__metadata__", ()) + getattr(item, "__args__", ())
    return ", ".join(found)
