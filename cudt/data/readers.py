"""Read columns of csv, tsv, json, jsonl and parquet files, as the files have them.

`datasets` reads these formats too, but not unchanged: texts of JSON that are dates become dates, a
number among the labels changes all others, and the cells of a csv row that is too long move by one
column, so that the label becomes the text. It also stores a copy of every file. So pyarrow reads
csv (each cell as text: "NA" and "01" are words) and parquet, and Python's own reader JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cudt.data.sources import reading
from cudt.utils.errors import UserError

#: A row of a csv file must be shorter than this, in bytes.
_BLOCK = 2**27


@dataclass(frozen=True)
class Table:
    """Some columns of a file."""

    names: list[str]
    """The names of all columns."""
    cells: dict[str, list[Any]]
    """The values of the columns that were asked for and exist, by name."""
    n_rows: int


def _read_separated(separator: str, file: Path, wanted: Sequence[str]) -> Table:
    import pyarrow as pa
    from pyarrow import csv

    # Without threads, errors have the number of the row.
    blocks = csv.ReadOptions(block_size=_BLOCK, use_threads=False)
    cells = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    with csv.open_csv(file, blocks, cells) as opened:
        names = opened.schema.names
    found = [name for name in wanted if name in names]
    # No columns would mean all of them, and the first one counts the rows.
    columns = found or names[:1]
    texts = csv.ConvertOptions(
        include_columns=columns, column_types=dict.fromkeys(columns, pa.string())
    )
    table = csv.read_csv(file, blocks, cells, texts)
    return Table(names, {name: table[name].to_pylist() for name in found}, table.num_rows)


def _read_parquet(file: Path, wanted: Sequence[str]) -> Table:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file) as opened:
        names = opened.schema_arrow.names
        found = [name for name in wanted if name in names]
        table = opened.read(columns=found)
        return Table(
            names, {name: table[name].to_pylist() for name in found}, opened.metadata.num_rows
        )


def _read_json(file: Path, wanted: Sequence[str]) -> Table:
    rows = json.loads(file.read_text(encoding="utf-8-sig"))
    if not isinstance(rows, list):
        raise UserError(f"{file}: expected a list of JSON objects")
    return _table_of_objects(file, rows, wanted)


def _read_jsonl(file: Path, wanted: Sequence[str]) -> Table:
    # Other ends of lines than a line feed can be part of a text.
    with file.open(encoding="utf-8-sig", newline="\n") as lines:
        rows = [
            _json(line, f"{file}, line {number}")
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
    return _table_of_objects(file, rows, wanted)


def _json(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: invalid JSON ({error})") from None


def _table_of_objects(file: Path, rows: Sequence[Any], wanted: Sequence[str]) -> Table:
    """The columns of JSON objects; a row without a value has None."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(f"{file}, row {number}: expected a JSON object")
        names |= dict.fromkeys(row)
    if not rows:
        raise UserError(f"{file}: the file is empty")
    return Table(
        [*names],
        {name: [row.get(name) for row in rows] for name in wanted if name in names},
        len(rows),
    )


READERS: dict[str, Callable[[Path, Sequence[str]], Table]] = {
    ".parquet": _read_parquet,
    ".csv": partial(_read_separated, ","),
    ".tsv": partial(_read_separated, "\t"),
    ".jsonl": _read_jsonl,
    ".json": _read_json,
}


def read_table(file: Path, wanted: Sequence[str]) -> Table:
    """Some columns of a file; an error names the file, and of csv files the row."""
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise UserError(f"{file}: unknown file type; expected one of {', '.join(READERS)}")
    with reading(file, "cannot be read", "check the file; texts are UTF-8"):
        return reader(file, wanted)
