"""Read tables from csv, tsv, json, jsonl and parquet files. Errors name the file and the line or row."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: What may separate the cells of csv and tsv files.
SEPARATORS = "commas, semicolons or tabs"
_COMMA = re.compile(r"\s*,\s*")


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # error.start counts from after the byte order mark, and so does error.object.
        line = error.object[: error.start].count(b"\n") + 1
        byte = f"byte 0x{error.object[error.start]:02x}"
        raise UserError(f"{file}, line {line}: not UTF-8 ({byte}); convert the file to UTF-8") from None


def _read_separated(file: Path, usual: str) -> pd.DataFrame:
    """Every cell as text: "NA" and "null" are words.

    pandas is not used, because it shifts the columns if the first row has an extra cell, and pads short rows.
    """
    import pandas as pd

    csv.field_size_limit(2**31 - 1)
    text = _read_text(file)
    separator = _separator(text, usual)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    begins = 1  # the line that the row being read begins in: a cell that is not closed goes on for many lines
    try:
        for row in reader:
            begins = reader.line_num + 1
            if not row:
                continue
            if rows and len(row) != len(rows[0]):
                raise UserError(
                    f"{file}, line {reader.line_num}: expected {len(rows[0])} cells separated by {separator!r}, got "
                    f"{len(row)}; quote cells that contain {separator!r}"
                )
            rows.append(row)
    except csv.Error as error:
        reason = "a quote of this row is never closed" if "end of data" in str(error) else str(error)
        raise UserError(
            f"{file}, line {begins}: {reason}; close every quote, and double quotes inside of a cell"
        ) from None
    if not rows:
        raise UserError(f"{file}: the file is empty")
    return pd.DataFrame(rows[1:], columns=rows[0], dtype=object)


def _separator(text: str, usual: str) -> str:
    """The usual separator, unless the first row has one cell with it and several with another one.

    Spreadsheets write semicolons in countries with a decimal comma.
    """
    for separator in (usual, ";", "\t", ","):
        try:
            header = next((row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row), [])
        except csv.Error:
            continue
        if len(header) > 1:
            return separator
    return usual


def _read_csv(file: Path) -> pd.DataFrame:
    return _read_separated(file, ",")


def _read_tsv(file: Path) -> pd.DataFrame:
    return _read_separated(file, "\t")


def _read_jsonl(file: Path) -> pd.DataFrame:
    rows = []
    for line, text in enumerate(_read_text(file).split("\n"), 1):
        if text.strip():
            rows.append(_json(text, f"{file}, line {line}"))
            if not isinstance(rows[-1], dict):
                raise UserError(f"{file}, line {line}: expected a JSON object")
    return _as_frame(rows, file)


def _read_json(file: Path) -> pd.DataFrame:
    text = _read_text(file)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}{_broken_row(text)}: invalid JSON ({error})") from None
    if not isinstance(rows, list):
        raise UserError(f"{file}: expected a list of JSON objects")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(f"{file}, row {number}: expected a JSON object")
    return _as_frame(rows, file)


def _broken_row(text: str) -> str:
    """The first row of a list that is not valid JSON, as `, row 3`; empty if the text is not a list."""
    decoder, row = json.JSONDecoder(), 0
    opening = re.match(r"\s*\[\s*", text)
    position = opening.end() if opening else None
    while position is not None:
        row += 1
        try:
            _, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        comma = _COMMA.match(text, end)
        position = comma.end() if comma else None
    return f", row {row}" if row else ""


def _as_frame(rows: list[dict[str, Any]], file: Path) -> pd.DataFrame:
    import pandas as pd

    if not rows:
        raise UserError(f"{file}: the file is empty")
    return pd.DataFrame(rows, dtype=object)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: too many nested brackets
        raise UserError(f"{where}: invalid JSON ({error})") from None


def _read_parquet(file: Path) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file)
        # Without this, invalid text would fail later, where the file is not known.
        table.validate(full=True)
        # Metadata of pandas could turn a column into an index.
        return table.to_pandas(ignore_metadata=True)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file}: not a valid parquet file ({str(error).splitlines()[0]})") from None


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
}
