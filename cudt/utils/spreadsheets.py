"""Texts of users in CSV files, so that a spreadsheet shows them and does not run them as formulas."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

#: A formula begins like this. An apostrophe before it makes it a text, and one more an apostrophe of the text.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_WRITTEN = re.compile(r"'+[=+\-@\t\r\n]")


def as_cell(value: Any) -> Any:
    """A value as it is written: a text that begins like a formula gets an apostrophe; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) and not _is_number(value) else value


def from_cell(value: Any) -> Any:
    """The value that was written."""
    return value[1:] if isinstance(value, str) and _WRITTEN.match(value) else value


def csv_text(table: pd.DataFrame) -> str:
    """A table as CSV; its texts are read back by `read_texts`."""
    return _mapped(table, as_cell).to_csv(index=False)


def read_texts(table: pd.DataFrame) -> pd.DataFrame:
    """A table that `csv_text` wrote, with its texts as they were."""
    return _mapped(table, from_cell)


def _mapped(table: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    import pandas as pd

    texts = [column for column in table.columns if table[column].dtype.kind == "O"]
    # Of the same type: otherwise integers would become floats in a column with an empty cell.
    changed = {name: pd.Series(map(change, table[name]), table.index, table[name].dtype) for name in texts}
    return table.assign(**changed)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
