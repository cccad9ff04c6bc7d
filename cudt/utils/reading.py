"""Parsers for files that cudt wrote; what cannot be parsed is a `ContentError` with the reason."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

#: The key of the digest in an object that has one.
_SEAL = "sha256"
#: Characters of a value that an error shows.
_SHOWN = 60


class ContentError(ValueError):
    """Why a file cannot be as it was written."""


def json_value(content: bytes) -> Any:
    """A JSON document. NaN and Infinity are numbers: a measurement may be one."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ContentError(f"not valid JSON: {error}") from None


def json_object(content: bytes) -> dict[str, Any]:
    """A JSON object, as `json_value` reads it."""
    value = json_value(content)
    if not isinstance(value, dict):
        raise ContentError("not a JSON object")
    return value


def sealed(values: Mapping[str, Any]) -> str:
    """A JSON object with the SHA-256 of its values, for `unsealed`; for files that are alone in
    their folder.
    """
    return json.dumps({**values, _SEAL: _digest(values)}, ensure_ascii=False)


def unsealed(content: bytes) -> dict[str, Any]:
    """The values of `sealed`; refused if they are not what was sealed."""
    values = json_object(content)
    if values.pop(_SEAL, None) != _digest(values):
        raise ContentError("its content is not what was written")
    return values


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def csv_table(
    content: bytes,
    columns: Sequence[str],
    numbers: Sequence[str],
    counts: Sequence[str],
    *,
    may_be_empty: bool = False,
) -> pd.DataFrame:
    """A CSV table with exactly these columns: `numbers` are floating-point, `counts` integers, all
    others words.
    """
    import pandas as pd

    if not content.endswith(b"\n"):
        raise ContentError("the last line is cut off")
    # Python parses the numbers: some versions of pandas lose the last digit, and a resumed history
    # must not.
    words = [column for column in columns if column not in numbers and column not in counts]
    types: dict[str, Any] = {**dict.fromkeys(counts, "int64"), **dict.fromkeys(words, str)}
    converters = dict.fromkeys(numbers, float)
    try:
        table = pd.read_csv(
            io.BytesIO(content),
            dtype=types,
            converters=converters,
            index_col=False,
            na_filter=False,
        )
    except (ValueError, OverflowError) as error:
        raise ContentError(f"not a table: {shown(str(error))}") from None
    if list(table.columns) != list(columns):
        raise ContentError(
            f"expected columns {', '.join(columns)}; found {shown(', '.join(table.columns))}"
        )
    if table.empty and not may_be_empty:
        raise ContentError("no rows")
    return table


def shown(text: str) -> str:
    """A value as an error shows it: one line, shortened."""
    line = text.strip().split("\n")[0]
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
