"""The status of a dataset, for `cudt data`."""

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
