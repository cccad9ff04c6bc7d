"""What a cell is given, reports and returns; nothing heavy is imported, so workers start fast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudt.sweep.pruning import Referee
    from cudt.utils.device import DeviceName


@dataclass(frozen=True)
class CellJob:
    """Everything that the function which trains a cell needs; the recipe is a text."""

    recipe: str
    out: Path
    device: DeviceName
    data_root: Path | None
    measure: str
    gammas: list[float] | None
    referee: Referee | None = None
    """Decides after each epoch whether the run is ended early; None if the arm does not prune."""
    trackers: tuple[str, ...] = ()
    group: str | None = None
    """What trackers call the runs of the sweep."""


@dataclass(frozen=True)
class CellProgress:
    """How far a cell is: after which of how many updates, or batches."""

    step: int
    steps: int
    loss: float | None
    unit: str = "update"


@dataclass(frozen=True)
class CellResult:
    """The score of a finished cell, and the facts that go into the tables."""

    score: float
    facts: dict[str, Any]
