"""Strict parsers for files that a program wrote: whatever is not complete and of the expected form is refused.

They raise a `ContentError` with the reason. Who knows the file makes it an error that says what to do.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

#: The most levels of objects and lists in each other; a thousand exhaust Python's stack in many places.
_DEEPEST = 64
#: The key of the digest in an object that has one.
_SEAL = "sha256"
#: Characters of a value that an error shows.
_SHOWN = 60


class ContentError(ValueError):
    """Why a file cannot be as it was written."""


def json_value(content: bytes) -> Any:
    """A JSON document; refused: other encodings than UTF-8, keys that are there twice, too many levels, surrogates.

    NaN and Infinity are numbers, as for Python's own reader: a measurement may be one.
    """
    try:
        value = json.loads(_text(content), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ContentError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise ContentError(f"not valid: more than {_DEEPEST} levels of objects and lists") from None
    # Only what the content may have is looked for: most files have neither.
    if content.count(b"{") + content.count(b"[") > _DEEPEST or b"\\u" in content:
        _check_values(value)
    return value


def json_object(content: bytes) -> dict[str, Any]:
    """A JSON object, as `json_value` reads it."""
    value = json_value(content)
    if not isinstance(value, dict):
        raise ContentError("not a JSON object")
    return value


def sealed(values: Mapping[str, Any]) -> str:
    """A JSON object with the SHA-256 of its values, for `unsealed`; for files that are alone in their folder."""
    return json.dumps({**values, _SEAL: _digest(values)}, ensure_ascii=False)


def unsealed(content: bytes) -> dict[str, Any]:
    """The values of `sealed`; refused if they are not what was sealed. Files of earlier versions have no seal."""
    values = json_object(content)
    if values.pop(_SEAL, None) not in (None, _digest(values)):
        raise ContentError("its content is not what was written")
    return values


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ContentError(f"key {shown(twice)} is there twice")
    return found


def _check_values(value: Any) -> None:
    """Refuse too many levels, and texts that cannot be written as UTF-8."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        for one in level:
            texts = [one] if isinstance(one, str) else list(one) if isinstance(one, dict) else []
            if not all(text.isascii() or _is_writable(text) for text in texts):
                raise ContentError("a text that is not Unicode (a lone surrogate)")
        inside = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [value for values in inside for value in values]
        if not level:
            return
    raise ContentError(f"more than {_DEEPEST} levels of objects and lists")


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def csv_table(
    content: bytes, columns: Sequence[str], numbers: Sequence[str], counts: Sequence[str], *, may_be_empty: bool = False
) -> pd.DataFrame:
    """A CSV table with exactly these columns: `numbers` are floating-point, `counts` integers, all others words."""
    import pandas as pd

    n_rows = check_csv(content, columns)
    if not n_rows and not may_be_empty:
        raise ContentError("no rows")
    # Python parses the numbers: some versions of pandas lose the last digit, and a resumed history must not.
    words = [column for column in columns if column not in numbers and column not in counts]
    types: dict[str, Any] = {**dict.fromkeys(counts, "int64"), **dict.fromkeys(words, str)}
    try:
        table = pd.read_csv(
            io.BytesIO(content),
            dtype=types,
            converters=dict.fromkeys(numbers, float),
            index_col=False,
            na_filter=False,
        )
    except (ValueError, OverflowError) as error:
        raise ContentError(f"a bad number: {shown(str(error))}") from None
    if len(table) != n_rows:
        raise ContentError(f"{n_rows} lines, but {len(table)} rows")
    return table


def check_csv(content: bytes, columns: Sequence[str] | None = None) -> int:
    """Check that every line of a CSV file is complete; return the number of rows below the header."""
    _text(content)
    if not content:
        raise ContentError("empty")
    if not content.endswith(b"\n"):
        raise ContentError("the last line is cut off")
    cells = _cells(content)
    header = next(csv.reader([content.partition(b"\n")[0].decode()]), [])
    if columns is not None and header != list(columns):
        raise ContentError(f"expected columns {', '.join(columns)}; found {shown(', '.join(header))}")
    if len(set(header)) < len(header):
        raise ContentError("two columns have the same name")
    for number, found in enumerate(cells, 1):
        if found != len(header):
            raise ContentError(f"line {number} has {found} cells instead of {len(header)}")
    return len(cells) - 1


def _cells(content: bytes) -> list[int]:
    """The number of cells in each line."""
    if b'"' not in content:
        return [line.count(b",") + 1 for line in content.split(b"\n")[:-1]]
    try:
        return [len(row) for row in csv.reader(io.StringIO(content.decode(), newline=""), strict=True)]
    except csv.Error as error:
        raise ContentError(str(error)) from None


def _text(content: bytes) -> str:
    if b"\0" in content:
        raise ContentError("a zero byte in a text")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ContentError(f"not UTF-8 at byte {error.start}") from None


def shown(text: str) -> str:
    """A value as an error shows it: one line, shortened."""
    line = text.strip().split("\n")[0]
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
