"""The contract of a speed bench: ours against a peer, as a ratio from interleaved rounds.

To add one, write one file in this folder that defines `BENCH`. Seconds of different machines, or of
one machine at different times, cannot be compared. So ours and the peer run by turns in one
process, each round gives one ratio, and the table shows their median with the lowest and the
highest. The default clock is CPU time, which other processes on the machine change little.
"""

from __future__ import annotations

import importlib
import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class SkippedError(Exception):
    """The bench cannot run here; the message says what is missing and how to get it."""


@dataclass(frozen=True)
class Setting:
    """Where a bench finds data and may write."""

    data_root: Path | None
    """The folder of real data; None if there is none."""
    folder: Path
    """An empty folder, deleted after the bench."""


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    ours: float
    peer: float
    unit: str
    """Of `ours` and `peer`, such as "CPU s/step"."""
    ratios: tuple[float, ...] = ()
    """ours ÷ peer in each round; without them the ratio is that of `ours` and `peer`."""
    note: str = ""
    """What a reader should know besides, such as accuracies or absolute times."""
    name: str | None = None
    """The name of the row, if a bench has several."""

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios) if self.ratios else self.ours / self.peer

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest ratio."""
        return (min(self.ratios), max(self.ratios)) if self.ratios else (self.ratio, self.ratio)


@dataclass(frozen=True)
class Bench:
    """A comparison of cudt with a peer."""

    name: str
    what: str
    """ours ÷ peer, in words."""
    goal: float
    higher_is_better: bool
    measure: Callable[[Setting], list[Outcome]]
    threads: int = 1
    """Each bench runs in a process of its own with this number of threads."""


def interleaved(
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    rounds: int = 7,
    warmup: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> tuple[list[float], list[float]]:
    """Seconds of ours and of the peer in each round; the order alternates, so that neither always
    follows the other.
    """
    timed: dict[int, list[float]] = {0: [], 1: []}
    for number in range(-warmup, rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            start = clock()
            (ours, peer)[which]()
            if number >= 0:
                timed[which].append(clock() - start)
    return timed[0], timed[1]


def compared(ours: list[float], peer: list[float], unit: str, *, note: str = "") -> Outcome:
    """The outcome of interleaved rounds: medians, and the ratio of each round."""
    ratios = tuple(one / other for one, other in zip(ours, peer, strict=True))
    return Outcome(statistics.median(ours), statistics.median(peer), unit, ratios, note)


def names() -> list[str]:
    """The files in this folder that define a bench."""
    marked = re.compile("^BENCH = ", re.MULTILINE)
    files = sorted(Path(__file__).parent.glob("*.py"))
    return [file.stem for file in files if marked.search(file.read_text(encoding="utf-8"))]


def load(name: str) -> Bench:
    """The bench in a file of this folder."""
    return importlib.import_module(f"{__package__}.{name}").BENCH


def use_threads(count: int) -> dict[str, str]:
    """The environment of a process that computes with `count` threads."""
    return {**os.environ, "OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count)}
