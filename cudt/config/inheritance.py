"""Files that inherit: `base: imdb-roberta` plus what differs.

Sections are merged key by key. Everything else is replaced: numbers, texts, null, whole lists, and
`alpha` when it changes between a number, a list and `{target_loss: …}`. A `task` or `model` section
with another `name` than the base's replaces that of the base, because other tasks and models have
other keys. `name`, `reproduces`, `published` and `expect` describe one file and are not inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from cudt.config import strict_yaml
from cudt.utils.errors import UserError
from cudt.utils.files import is_file
from cudt.utils.shown import shown, shown_path

#: Keys about one file alone.
NOT_INHERITED = {"name", "reproduces", "published", "expect"}
#: From the name of a file that comes with cudt to its path.
Locate = Callable[[str], Path]
_Path = tuple[str | int, ...]


def read(path: Path, locate: Locate) -> dict[str, Any]:
    """The values of a file and of the files it inherits from. A `base` is a shipped name, or a path
    from this file.
    """
    return _with_bases(_parse(path), path, locate, ())


def from_values(values: dict[str, Any], source: str, locate: Locate) -> dict[str, Any]:
    """The same for settings that were not read from a file: a `base` that is a path starts at the
    current folder.
    """
    return _with_bases(dict(values), Path(source), locate, ())


def _with_bases(
    values: dict[str, Any], path: Path, locate: Locate, chain: tuple[Path, ...]
) -> dict[str, Any]:
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise UserError(
            f"{path}: base: expected the name of a file to inherit from, got {shown(base)}"
        )
    chain = (*chain, path.resolve())
    try:
        inherited_from = path.parent / base if _is_file_name(base) else locate(base)
        if not is_file(inherited_from):
            raise UserError(f"{shown_path(inherited_from)} does not exist")
    except UserError as error:
        raise UserError(f"{path}: base: {error}") from None
    if inherited_from.resolve() in chain:
        names = " → ".join(one.name for one in (*chain, inherited_from))
        raise UserError(f"{path}: base: files inherit from each other in a circle: {names}")
    inherited = _with_bases(_parse(inherited_from), inherited_from, locate, chain)
    return _merge(
        {key: value for key, value in inherited.items() if key not in NOT_INHERITED}, values
    )


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        before = base.get(key)
        merged[key] = _merge(before, value) if _is_same_section(before, value) else value
    return merged


def _is_same_section(before: Any, after: Any) -> TypeGuard[dict[str, Any]]:
    """Whether both are sections, and of the same task or model if they name one."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return False
    return "name" not in after or after["name"] == before.get("name")


def leaves(value: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    """The path of every value that is not a section."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set `a.b.c`, making missing sections; KeyError if `a` or `a.b` is a value rather than a
    section.
    """
    *sections, last = path.split(".")
    for key in sections:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise KeyError(f"{shown(key)} is a value, not a section; it has no key {shown(last)}")
    values[last] = value


def _is_file_name(base: str) -> bool:
    return base.endswith((".yaml", ".yml")) or "/" in base


def _parse(path: Path) -> dict[str, Any]:
    return strict_yaml.parse_mapping(strict_yaml.read_text(path), str(path))
