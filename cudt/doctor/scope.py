"""What is examined: folders with runs, recipes, the data root, and what torch says about itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cudt.doctor.probe import Probe
from cudt.utils.progress import Track, track


@dataclass(frozen=True)
class Scope:
    """What the checks look at."""

    folders: Sequence[Path] = ()
    """Folders with runs; they need not exist yet."""
    recipes: Sequence[str] = ()
    """Recipe files that were named, in addition to the recipes that come with cudt."""
    data_root: Path | None = None
    probe: Probe = field(default_factory=Probe)
    track: Track = track
