"""history.csv: what training measures while it runs. Checkpoints append to it, and only what is new."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudt.runs.run import Run
from cudt.runs.tables import TABLES
from cudt.utils.errors import UserError
from cudt.utils.files import append_at, write_atomically


@dataclass
class History:
    """The rows since the last checkpoint, and how much of history.csv belongs to that checkpoint."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    size: int = 0
    """Bytes of history.csv up to the last checkpoint."""

    def record(self, step: int, epoch: int, split: str, layers: Sequence[int], values: dict[str, list[float]]) -> None:
        """Add one row for each name and layer; layer 0 is the whole model."""
        for name, by_layer in values.items():
            pairs = zip(layers, by_layer, strict=True)
            self.rows += [(step, epoch, split, layer, name, value) for layer, value in pairs]

    def append(self, run: Run) -> None:
        """Append the new rows to history.csv, and forget them.

        What the file has beyond the last checkpoint is cut off: it is from updates that will be, or were, repeated.
        """
        if self.size == 0:
            header = _lines([TABLES["history"]])
            write_atomically(_file(run), lambda file: file.write(header))
            self.size = len(header)
        content = _lines(self.rows)
        append_at(_file(run), self.size, content)
        self.size += len(content)
        self.rows.clear()

    @classmethod
    def resumed(cls, run: Run, size: int) -> History:
        """The history of a run whose checkpoint was written when history.csv had `size` bytes."""
        file = _file(run)
        found = file.stat().st_size if file.is_file() else 0
        if found < size:
            raise UserError(
                f"{file}: {found} bytes, but it had {size} when the checkpoint was written; restore it, or delete "
                f"{run.last_checkpoint} to train from the beginning"
            )
        return cls(size=size)

    @classmethod
    def resumed_after(cls, run: Run, rows: int) -> History:
        """The same for a checkpoint of an earlier version of cudt, which has the number of rows instead."""
        file = _file(run)
        if not file.is_file():
            return cls()
        with file.open("rb") as lines:
            kept = [line for line, _ in zip(lines, range(rows + 1), strict=False)]
        return cls(size=sum(len(line) for line in kept))


def _file(run: Run) -> Path:
    return run.path / "history.csv"


def _lines(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
