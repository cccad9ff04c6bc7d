"""The measurements as CSV files in this folder, from which docs/scale.md is written."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def write(name: str, rows: Sequence[Any], folder: Path = FOLDER) -> None:
    """Write dataclasses as rows; a dataclass in one of them is written as columns, too."""
    flat = [_flat(row) for row in rows]
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(flat[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)


def _flat(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if dataclasses.is_dataclass(value):
            found |= _flat(value)
        else:
            found[field.name] = f"{value:.5g}" if isinstance(value, float) else value
    return found


def read(name: str, kind: type[Any], folder: Path = FOLDER) -> list[Any]:
    """The dataclasses that `write` wrote."""
    with (folder / f"{name}.csv").open(encoding="utf-8") as file:
        return [_made(kind, row) for row in csv.DictReader(file)]


def _made(kind: type[Any], row: dict[str, str]) -> Any:
    import typing

    types = typing.get_type_hints(kind)
    return kind(**{field.name: _value(types[field.name], field.name, row) for field in dataclasses.fields(kind)})


def _value(kind: Any, name: str, row: dict[str, str]) -> Any:
    if dataclasses.is_dataclass(kind):
        return _made(kind, row)  # type: ignore[arg-type]
    if kind is bool:
        return row[name] == "True"
    return kind(row[name]) if kind in (int, float) else row[name]
