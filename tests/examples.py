"""Scores of single examples for tests."""

from __future__ import annotations

from functools import partial

import pandas as pd

from cudt.runs.examples import Part, Pieces


def by_part(rows: pd.DataFrame) -> dict[Part, Pieces]:
    """The rows of examples.parquet as an evaluation hands them over: by level and noise seed, in
    order."""
    return {
        Part(str(kind), float(str(gamma)), int(str(seed))): partial(
            iter, [group.sort_values("id", kind="stable")]
        )
        for (kind, gamma, seed), group in rows.groupby(list(Part._fields))
    }
