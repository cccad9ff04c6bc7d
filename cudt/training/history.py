"""The rows of history.csv: what training measures while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from cudt.runs.run import Run
from cudt.runs.tables import TABLES


@dataclass
class History:
    """All rows so far, in memory until the next checkpoint."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def record(self, step: int, epoch: int, split: str, layers: Sequence[int], values: dict[str, list[float]]) -> None:
        """Add one row for each name and layer; layer 0 is the whole model."""
        for name, by_layer in values.items():
            pairs = zip(layers, by_layer, strict=True)
            self.rows += [(step, epoch, split, layer, name, value) for layer, value in pairs]

    def write(self, run: Run) -> None:
        """Write history.csv."""
        run.write_table("history", pd.DataFrame(self.rows, columns=TABLES["history"]))

    @classmethod
    def read(cls, run: Run, length: int) -> History:
        """The first `length` rows of history.csv; rows after a checkpoint are dropped when training resumes."""
        rows = run.read_table("history").head(length)
        return cls(list(rows.itertuples(index=False, name=None)))
