"""Scores of single examples for tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd

from cudt.runs.examples import Part


def by_part(rows: pd.DataFrame) -> dict[Part, Callable[[], pd.DataFrame]]:
    """The rows of examples.parquet as an evaluation hands them over: by level and noise seed."""
    return {
        Part(str(kind), float(str(gamma)), int(str(seed))): partial(pd.DataFrame, group)
        for (kind, gamma, seed), group in rows.groupby(list(Part._fields))
    }
