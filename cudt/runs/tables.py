"""The tables of a run folder: their columns, and reading and writing them as CSV.

All tables are long, so that their columns never change.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cudt.utils.errors import UserError, did_you_mean
from cudt.utils.files import write_text

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
    "privacy": ["gamma", "sigma", "unit", "sensitivity", "delta", "epsilon", "metric", "value"],
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
    "privacy": ["gamma", "sigma", "sensitivity", "delta", "epsilon", "value"],
    "exits": ["gamma", "threshold", "accuracy", "full_accuracy", "mean_depth", "flops", "full_flops"],
}


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """A table of a run folder; empty if its file does not exist."""
    import pandas as pd

    if name not in TABLES:
        hint = did_you_mean(name, TABLES) or ";"
        raise UserError(f"no table '{name}'{hint} a run has {', '.join(TABLES)}")
    path = folder / f"{name}.csv"
    if not path.is_file():
        return _empty(name).copy()
    # Python parses the numbers: some versions of pandas lose the last digit, and a resumed history must not.
    # Only history.csv grows while it is read; the other files are replaced as a whole.
    content = _whole_lines(path) if name == "history" else path
    table = pd.read_csv(content, converters=dict.fromkeys(_NUMBERS[name], float))
    if list(table.columns) != TABLES[name]:
        expected, found = ", ".join(TABLES[name]), ", ".join(table.columns)
        raise UserError(f"{path}: damaged (expected columns {expected}; found {found})")
    return _as_numbers(table, name)


def _whole_lines(path: Path) -> io.BytesIO:
    """The content of a file without an incomplete last line."""
    content = path.read_bytes()
    return io.BytesIO(content[: content.rfind(b"\n") + 1] or content)


def write_table(folder: Path, name: str, rows: pd.DataFrame) -> None:
    """Write a table, replacing its file."""
    write_text(folder / f"{name}.csv", rows[TABLES[name]].to_csv(index=False, na_rep="nan"))


def merge_table(folder: Path, name: str, rows: pd.DataFrame, keys: list[str]) -> None:
    """Add rows to a table; they replace all rows with the same keys."""
    joined = _merged(read_table(folder, name), rows, keys)
    order = [column for column in ("split", "perturbation", "gamma") if column in joined.columns]
    write_table(folder, name, joined.sort_values(order, kind="stable"))


def _merged(old: pd.DataFrame, rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The old rows whose keys are not among the new ones, followed by the new rows."""
    import pandas as pd

    kept = old[~pd.MultiIndex.from_frame(old[keys]).isin(pd.MultiIndex.from_frame(rows[keys].drop_duplicates()))]
    return rows if kept.empty else pd.concat([kept, rows], ignore_index=True)


def _as_numbers(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The table with typed columns; without rows they would have type object, and so would every table they join."""
    untyped = [column for column in _NUMBERS[name] if table[column].dtype != float]
    return table.astype(dict.fromkeys(untyped, float)) if untyped else table


@cache
def _empty(name: str) -> pd.DataFrame:
    """Made once: a report asks for thousands of tables that runs do not have."""
    import pandas as pd

    return _as_numbers(pd.DataFrame(columns=TABLES[name]), name)
