"""Helpers of tests of records: write files with texts and labels, and read them or their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cudt.data.text import Columns, Records, read_files
from cudt.utils.errors import UserError

TEXT = Columns(("text",), "label")
PAIR = Columns(("premise", "hypothesis"), "label")


def read(folder: Path, name: str, content: bytes | str, columns: Columns = TEXT) -> Records:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_files([path], columns)


def error_of(folder: Path, name: str, content: bytes | str, columns: Columns = TEXT) -> str:
    """The error of a bad file without the file name; always one line."""
    with pytest.raises(UserError) as error:
        read(folder, name, content, columns)
    message = str(error.value)
    assert message.startswith(f"{folder / name}")
    assert "\n" not in message
    return message.removeprefix(f"{folder / name}")


def parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()
