"""Tables from files: csv, tsv, json, jsonl, parquet. What is wrong with a file is told with its name and the line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from cudt.utils.errors import UserError

_COMMA = re.compile(r"\s*,\s*")


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # What was decoded is the content without its byte order mark, and so counts the position.
        line = error.object[: error.start].count(b"\n") + 1
        byte = f"byte 0x{error.object[error.start]:02x}"
        raise UserError(f"{file}, line {line}: not UTF-8 ({byte}); convert the file to UTF-8") from None


def _read_separated(file: Path, separator: str) -> pd.DataFrame:
    """Every cell as it is written: "NA" and "null" are words.

    Not by pandas, which shifts the columns of a file whose first row has a cell too many, and fills up short rows.
    """
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(_read_text(file), newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    try:
        for row in reader:
            if not row:
                continue
            if rows and len(row) != len(rows[0]):
                raise UserError(f"{file}, line {reader.line_num}: not {len(rows[0])} cells but {len(row)}")
            rows.append(row)
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: {error} (a quote left open, or not doubled?)") from None
    if not rows:
        raise UserError(f"{file}: empty")
    return pd.DataFrame(rows[1:], columns=rows[0], dtype=object)


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
                raise UserError(f"{file}, line {line}: not a JSON object")
    return _as_frame(rows, file)


def _read_json(file: Path) -> pd.DataFrame:
    text = _read_text(file)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}{_broken_row(text)}: not JSON ({error})") from None
    if not isinstance(rows, list):
        raise UserError(f"{file}: not a list of JSON objects")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(f"{file}, row {number}: not a JSON object")
    return _as_frame(rows, file)


def _broken_row(text: str) -> str:
    """Which row of a list is not JSON; nothing where it is not a list."""
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
    if not rows:
        raise UserError(f"{file}: empty")
    return pd.DataFrame(rows, dtype=object)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: brackets in brackets without end
        raise UserError(f"{where}: not JSON ({error})") from None


def _read_parquet(file: Path) -> pd.DataFrame:
    try:
        table = pyarrow.parquet.read_table(file)
        # Texts are decoded when they are looked at, which would be too late to name the file.
        table.validate(full=True)
        # What pandas noted in the file could turn a column into an index.
        return table.to_pandas(ignore_metadata=True)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file}: damaged, or not a parquet file ({str(error).splitlines()[0]})") from None


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
}
