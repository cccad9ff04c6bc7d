"""Columns of numbers in a parquet file, read as arrays without a Python object for each number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudt.data.readers import arrow_columns
from cudt.data.sources import reading
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, list[np.ndarray[Any, Any]]]


def read_arrays(file: Path) -> Arrays:
    """For each column, the numbers of each row; a column of single numbers gives arrays of one."""
    if not file.is_file():
        raise UserError(f"data file '{file}' does not exist")
    names, table = arrow_columns(file)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{file}: several columns are called '{twice}'; rename all but one")
    with reading(file, "not a file of numbers", "write it again"):
        return {name: _rows(table[name], f"{file}, column '{name}'") for name in names}


def _rows(column: Any, where: str) -> list[np.ndarray[Any, Any]]:
    import numpy as np
    import pyarrow as pa

    found: list[np.ndarray[Any, Any]] = []
    for chunk in column.chunks:
        lists = pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type)
        values = chunk.flatten() if lists else chunk
        is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        if not is_number:
            raise UserError(f"{where}: expected numbers or lists of numbers, got {chunk.type}")
        if chunk.null_count or values.null_count:
            raise UserError(f"{where}: a number is missing; remove the row or fill it in")
        numbers = values.to_numpy(zero_copy_only=False)
        ends = np.cumsum(chunk.value_lengths().to_numpy()) if lists else np.arange(1, len(chunk) + 1)
        found += np.split(numbers, ends[:-1]) if len(ends) else []
    return found
