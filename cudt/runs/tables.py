"""The tables of a run folder: their columns, and reading and writing them as CSV.

All tables are long, so that their columns never change.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from cudt.runs import checksums
from cudt.utils.errors import UserError, did_you_mean
from cudt.utils.reading import csv_table

if TYPE_CHECKING:
    import pandas as pd

#: The columns of each CSV file.
TABLES = {
    "history": ["step", "epoch", "split", "layer", "name", "value"],
    "layers": ["split", "perturbation", "gamma", "layer", "loss", "metric"],
    "layer_metrics": ["perturbation", "gamma", "layer", "name", "value"],
    "ood": ["perturbation", "gamma", "seed", "metric", "value", "n"],
    "validation": ["perturbation", "gamma", "seed", "metric", "value", "n"],
    "ratios": ["perturbation", "gamma", "layer", "name", "value"],
    "ratio_bins": ["perturbation", "gamma", "left", "right", "share", "cumulative"],
    "constraints": [
        *("perturbation", "gamma", "layer"),
        *("loss", "allowed", "violation", "standard_error", "verdict"),
    ],
    "descent": ["perturbation", "gamma", "layer", "name", "value"],
    "exits": [
        *("split", "perturbation", "gamma", "seed", "rule", "point", "threshold", "chosen"),
        *("accuracy", "full_accuracy", "mean_depth", "flops", "full_flops", "n"),
    ],
}
#: The columns of floating-point numbers.
_NUMBERS = {
    "history": ["value"],
    "layers": ["gamma", "loss", "metric"],
    "layer_metrics": ["gamma", "value"],
    "ood": ["gamma", "value"],
    "validation": ["gamma", "value"],
    "ratios": ["gamma", "value"],
    "ratio_bins": ["gamma", "left", "right", "share", "cumulative"],
    "constraints": ["gamma", "loss", "allowed", "violation", "standard_error"],
    "descent": ["gamma", "value"],
    "exits": [
        "gamma",
        "threshold",
        "accuracy",
        "full_accuracy",
        "mean_depth",
        "flops",
        "full_flops",
    ],
}


#: The columns of integers; all that are neither these nor floating-point numbers are words.
_COUNTS = ("step", "epoch", "layer", "seed", "n", "point", "chosen")


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """A table of a run folder; empty if its file does not exist, a DamagedFileError if it is not as
    it was written.
    """
    if name not in TABLES:
        hint = did_you_mean(name, TABLES) or ";"
        raise UserError(f"no table '{name}'{hint} a run has {', '.join(TABLES)}")
    try:
        return checksums.read_as(folder, file_of(name), partial(_parsed, name))
    except FileNotFoundError:
        return _empty(name).copy()


def check(folder: Path, name: str) -> None:
    """Refuse a table that is not as it was written; without a digest of it, one that cannot be
    read.
    """
    if file_of(name) in checksums.recorded(folder):
        with suppress(FileNotFoundError):
            checksums.check_file(folder, file_of(name))
    else:
        read_table(folder, name)


def file_of(name: str) -> str:
    """The name of a table's file."""
    return f"{name}.csv"


def _parsed(name: str, content: bytes) -> pd.DataFrame:
    columns, is_history = TABLES[name], name == "history"
    # Only history.csv grows while it is read; the other files are replaced as a whole.
    whole = content[: content.rfind(b"\n") + 1] or content if is_history else content
    counts = [column for column in columns if column in _COUNTS]
    return _as_numbers(
        csv_table(whole, columns, _NUMBERS[name], counts, may_be_empty=is_history), name
    )


def write_table(folder: Path, name: str, rows: pd.DataFrame) -> None:
    """Write a table, replacing its file."""
    checksums.write_checked(
        folder, file_of(name), rows[TABLES[name]].to_csv(index=False, na_rep="nan").encode()
    )


def merge_table(folder: Path, name: str, rows: pd.DataFrame, keys: list[str]) -> None:
    """Add rows to a table; they replace all rows with the same keys."""
    joined = _merged(read_table(folder, name), rows, keys)
    order = [column for column in ("split", "perturbation", "gamma") if column in joined.columns]
    write_table(folder, name, joined.sort_values(order, kind="stable"))


def _merged(old: pd.DataFrame, rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The old rows whose keys are not among the new ones, followed by the new rows."""
    import pandas as pd

    kept = old[
        ~pd.MultiIndex.from_frame(old[keys]).isin(
            pd.MultiIndex.from_frame(rows[keys].drop_duplicates())
        )
    ]
    return rows if kept.empty else pd.concat([kept, rows], ignore_index=True)


def _as_numbers(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The table with typed columns; without rows they would have type object, and so would every
    table they join.
    """
    untyped = [column for column in _NUMBERS[name] if table[column].dtype != float]
    return table.astype(dict.fromkeys(untyped, float)) if untyped else table


@cache
def _empty(name: str) -> pd.DataFrame:
    """Made once: a report asks for thousands of tables that runs do not have."""
    import pandas as pd

    return _as_numbers(pd.DataFrame(columns=TABLES[name]), name)
