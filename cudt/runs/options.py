"""The options of commands that train many runs (`cudt sweep`, `cudt reproduce`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cudt.utils.device import DeviceName


@dataclass(frozen=True)
class RunOptions:
    """Where runs are written and how they are computed; none of it changes a result."""

    out: Path
    """The folder of the run folders."""
    device: DeviceName = "auto"
    data_root: Path | None = None
    workers: int = 1
    """Runs that are trained or evaluated at the same time, each in its own process."""
    retry_failed: bool = False
