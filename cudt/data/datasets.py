"""What is available of a data set, for `cudt data`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holding:
    """What is there of a data set."""

    name: str
    place: Path
    parts: dict[str, str]
    """What each split has, in words."""
    problem: str = ""
    """What is missing and how to get it; nothing where it is all there."""
