"""history.csv: what training measures while it runs. Checkpoints append to it, and only what is
new.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudt.runs.run import TABLES, Run
from cudt.training.checkpoint_file import FileRecord, damaged
from cudt.utils.files import append_at, write_atomically

#: Bytes that are read at a time.
_CHUNK = 1 << 20
#: Step, epoch, split, layer, name, value.
Row = tuple[int, int, str, int, str, float]


@dataclass
class History:
    """The rows since the last checkpoint, and how much of history.csv belongs to that
    checkpoint.
    """

    rows: list[Row] = field(default_factory=list)
    size: int = 0
    """Bytes of history.csv up to the last checkpoint."""
    _digest: Any = field(default_factory=hashlib.sha256, compare=False, repr=False)
    """Of these bytes. It goes on with each checkpoint, so that no checkpoint has to read the
    file."""

    def record(
        self,
        step: int,
        epoch: int,
        split: str,
        layers: Sequence[int],
        values: dict[str, list[float]],
    ) -> list[Row]:
        """Add one row for each name and layer, and return these rows; layer 0 is the whole
        model.
        """
        added: list[Row] = []
        for name, by_layer in values.items():
            pairs = zip(layers, by_layer, strict=True)
            added += [(step, epoch, split, layer, name, value) for layer, value in pairs]
        self.rows += added
        return added

    def append(self, run: Run) -> None:
        """Append the new rows to history.csv, and forget them.

        What the file has beyond the last checkpoint is cut off: it is from updates that will be, or
        were, repeated.
        """
        if self.size == 0:
            header = _lines([TABLES["history"]])
            write_atomically(_file(run), lambda file: file.write(header))
            self._count(header)
        content = _lines(self.rows)
        append_at(_file(run), self.size, content)
        self._count(content)
        self.rows.clear()

    def saved(self) -> FileRecord:
        """What a checkpoint checks the file by."""
        return FileRecord(bytes=self.size, sha256=self._digest.hexdigest())

    def _count(self, content: bytes) -> None:
        self.size += len(content)
        self._digest.update(content)

    @classmethod
    def resumed(cls, run: Run, size: int, sha256: str | None = None) -> History:
        """The history of a run whose checkpoint was written when history.csv had `size` bytes.

        A DamagedFileError if these bytes are not the same any more.
        """
        history, file = cls(), _file(run)
        for chunk in _beginning(file, size):
            history._count(chunk)
        if history.size < size:
            raise damaged(
                file, f"{history.size} bytes, but it had {size} when the checkpoint was written"
            )
        if sha256 not in (None, history.saved().sha256):
            raise damaged(file, "changed since the checkpoint was written")
        return history


def _beginning(file: Path, size: int) -> Any:
    """The first `size` bytes of a file, in parts; fewer if it is shorter or missing."""
    if file.is_file():
        with file.open("rb") as opened:
            while size > 0 and (chunk := opened.read(min(size, _CHUNK))):
                size -= len(chunk)
                yield chunk


def _file(run: Run) -> Path:
    return run.path / "history.csv"


def _lines(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
