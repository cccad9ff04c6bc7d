"""What is available of a dataset, for `cudt data`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DatasetStatus:
    """What is available of one dataset."""

    name: str
    folder: Path
    parts: dict[str, str]
    """What each split has, like `3 files`."""
    problem: str = ""
    """What is missing and how to get it; empty if the dataset is complete."""

    def lines(self) -> list[str]:
        """A heading with status and folder, a line for each split, and what is missing."""
        status = "complete" if not self.problem else "partial" if self.parts else "missing"
        heading = f"{self.name:28} {status:8} {self.folder}"
        details = [f"{split}: {part}" for split, part in self.parts.items()]
        return [heading, *(f"    {detail}" for detail in (*details, self.problem) if detail)]
