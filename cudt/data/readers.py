"""Read columns of csv, tsv, json, jsonl and parquet files. Errors name the file and the line or row.

Only the columns that are asked for become Python objects: a small file can have a million columns.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cudt.data.sources import reading
from cudt.utils.errors import UserError

#: What may separate the cells of csv and tsv files.
SEPARATORS = "commas, semicolons or tabs"
#: The longest cell of csv and tsv files, in characters; the csv module needs eight bytes for each of them.
LONGEST = 2**24
#: A parquet file may have this many rows whatever its size, and otherwise one row for each byte.
_ROWS = 500_000
#: The same for the bytes of its data before compression, and otherwise this many for each byte.
_UNPACKED, _RATIO = 50_000_000, 100
_COMMA = re.compile(r"\s*,\s*")


@dataclass(frozen=True)
class Table:
    """Some columns of a file."""

    names: list[str]
    """The names of all columns; a name can occur several times."""
    cells: dict[str, list[Any]]
    """The values of the columns that were asked for and exist, by name."""
    n_rows: int


def _lines(file: Path, end: Literal["", "\n"]) -> Iterator[str]:
    """The lines of a text; with `end` empty, they end with a line feed, a carriage return, or both."""
    with reading(file, "cannot be read", "check the file"), file.open(encoding="utf-8-sig", newline=end) as lines:
        try:
            yield from lines
        except UnicodeDecodeError:
            # It was decoded in parts, so the error does not know the line.
            _check_utf8(file)
            raise


def _check_utf8(file: Path) -> None:
    try:
        file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # error.start counts from after the byte order mark, and so does error.object.
        line = error.object[: error.start].count(b"\n") + 1
        byte = f"byte 0x{error.object[error.start]:02x}"
        raise UserError(f"{file}, line {line}: not UTF-8 ({byte}); convert the file to UTF-8") from None


def _read_separated(file: Path, wanted: Sequence[str], usual: str) -> Table:
    """Every cell as text: "NA" and "null" are words.

    pandas is not used, because it shifts the columns if the first row has an extra cell, and pads short rows.
    """
    csv.field_size_limit(LONGEST)
    rows = _rows(file, _separator(file, usual))
    names = next(rows, None)
    if names is None:
        raise UserError(f"{file}: the file is empty")
    places = {name: names.index(name) for name in wanted if name in names}
    cells: dict[str, list[Any]] = {name: [] for name in places}
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        for name, place in places.items():
            cells[name].append(row[place])
    return Table(names, cells, count)


def _rows(file: Path, separator: str) -> Iterator[list[str]]:
    """The rows that are not blank, all as long as the first one."""
    reader = csv.reader(_lines(file, ""), delimiter=separator, strict=True)
    width = 0
    begins = 1  # the line that the row being read begins in: a cell that is not closed goes on for many lines
    try:
        for row in reader:
            begins = reader.line_num + 1
            width = width or len(row)
            if row and len(row) != width:
                raise UserError(
                    f"{file}, line {reader.line_num}: expected {width} cells separated by {separator!r}, got "
                    f"{len(row)}; quote cells that contain {separator!r}"
                )
            if row:
                yield row
    except csv.Error as error:
        raise _csv_error(file, begins, error) from None


def _csv_error(file: Path, line: int, error: csv.Error) -> UserError:
    reason = str(error)
    if "field larger than" in reason:
        reason = f"a cell has more than {LONGEST:,} characters, or its quote is never closed"
    elif "end of data" in reason:
        reason = "a quote of this row is never closed"
    return UserError(f"{file}, line {line}: {reason}; close every quote, and double quotes inside of a cell")


def _separator(file: Path, usual: str) -> str:
    """The usual separator, unless the first row has one cell with it and several with another one.

    Spreadsheets write semicolons in countries with a decimal comma.
    """
    for separator in (usual, ";", "\t", ","):
        try:
            header = next((row for row in csv.reader(_lines(file, ""), delimiter=separator) if row), [])
        except csv.Error:
            continue
        if len(header) > 1:
            return separator
    return usual


def _read_csv(file: Path, wanted: Sequence[str]) -> Table:
    return _read_separated(file, wanted, ",")


def _read_tsv(file: Path, wanted: Sequence[str]) -> Table:
    return _read_separated(file, wanted, "\t")


def _read_jsonl(file: Path, wanted: Sequence[str]) -> Table:
    def rows() -> Iterator[tuple[str, Any]]:
        for line, text in enumerate(_lines(file, "\n"), 1):
            if text.strip():
                yield f"line {line}", _json(text, f"{file}, line {line}")

    return _table_of_objects(file, rows(), wanted)


def _read_json(file: Path, wanted: Sequence[str]) -> Table:
    text = "".join(_lines(file, "\n"))
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}{_broken_row(text)}: invalid JSON ({error})") from None
    if not isinstance(rows, list):
        raise UserError(f"{file}: expected a list of JSON objects")
    return _table_of_objects(file, ((f"row {number}", row) for number, row in enumerate(rows, 1)), wanted)


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


def _table_of_objects(file: Path, rows: Iterable[tuple[str, Any]], wanted: Sequence[str]) -> Table:
    """The columns of rows that come with their position in the file; a row without a value has None."""
    names: dict[str, None] = {}
    cells: dict[str, list[Any]] = {name: [] for name in wanted}
    count = 0
    for count, (where, row) in enumerate(rows, 1):  # noqa: B007
        if not isinstance(row, dict):
            raise UserError(f"{file}, {where}: expected a JSON object")
        names |= dict.fromkeys(row)
        for name in wanted:
            cells[name].append(row.get(name))
    if not count:
        raise UserError(f"{file}: the file is empty")
    return Table([*names], {name: column for name, column in cells.items() if name in names}, count)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: too many nested brackets
        raise UserError(f"{where}: invalid JSON ({error})") from None


def _read_parquet(file: Path, wanted: Sequence[str]) -> Table:
    names, table = arrow_columns(file, wanted)
    return Table(names, {name: _values(table[name]) for name in table.column_names}, table.num_rows)


def arrow_columns(file: Path, wanted: Sequence[str] | None = None) -> tuple[list[str], Any]:
    """The names of all columns of a parquet file, and a table of pyarrow with those that are wanted, or all.

    Of two columns of one name, neither is read.
    """
    import pyarrow.parquet

    with reading(file, "not a valid parquet file", "download it again, or write it again"):
        metadata = pyarrow.parquet.read_metadata(file)
        _check_proportions(file, metadata)
        schema = metadata.schema.to_arrow_schema()
        asked = schema.names if wanted is None else wanted
        single = [name for name in dict.fromkeys(asked) if schema.names.count(name) == 1]
        kinds = (pyarrow.types.is_string, pyarrow.types.is_large_string)
        texts = [name for name in single if any(matches(schema.field(name).type) for matches in kinds)]
        # A text that is stored once for many rows is read once.
        with pyarrow.parquet.ParquetFile(file, metadata=metadata, read_dictionary=texts) as opened:
            table = opened.read(columns=single)
        # Without this, invalid text would fail later, where the file is not known.
        table.validate(full=True)
        return schema.names, table


def _check_proportions(file: Path, metadata: Any) -> None:
    """Refuse a small file that becomes large: one of a few kilobytes can claim, and even have, a billion rows."""
    size = file.stat().st_size
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)
    if not 0 <= metadata.num_rows <= max(_ROWS, size):
        what = f"{metadata.num_rows:,} rows"
    elif not 0 <= unpacked <= max(_UNPACKED, _RATIO * size):
        what = f"{unpacked:,} bytes of data"
    else:
        return
    raise UserError(f"{file}: claims {what}, too much for a file of {size:,} bytes; write it again in smaller parts")


def _values(column: Any) -> list[Any]:
    """The cells as Python objects; equal texts of a compressed column are one object."""
    import pyarrow as pa

    values: list[Any] = []
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            texts = chunk.dictionary.to_pylist()
            values += [None if index is None else texts[index] for index in chunk.indices.to_pylist()]
        else:
            values += chunk.to_pylist()
    return values


READERS: dict[str, Callable[[Path, Sequence[str]], Table]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
}
