"""Long runs: memory and the time of a checkpoint do not grow with the number of updates."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cudt.training import launch
from cudt.training.checkpoint import Checkpoints
from cudt.training.display import PlainDisplay
from cudt.training.view import TrainingView
from tests.conftest import tiny_recipe

PAGE = os.sysconf("SC_PAGE_SIZE")


class Watching(PlainDisplay):
    """Keeps the resident memory after some updates, in bytes by update."""

    def __init__(self, every: int) -> None:
        super().__init__(Console(quiet=True))
        self._every = every
        self.memory: dict[int, int] = {}

    def update(self, view: TrainingView) -> None:
        if view.step % self._every == 0:
            self.memory[view.step] = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def train(
    updates: int, per_epoch: int, every: int, out: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[int, int], list[float]]:
    """Train; return the memory by update, and the seconds of processor time of each checkpoint within an epoch."""
    settings = (f"training.epochs={updates // per_epoch}", f"task.train={2 * per_epoch}", "training.batch_size=2")
    often = (f"training.checkpoint_every={every}", "training.log_every=5", "task.validation=8", "model.layers=2")
    save, seconds, watching = Checkpoints.save, [], Watching(10)

    def timed(self: Checkpoints, *given, **named) -> None:
        began = time.process_time()
        save(self, *given, **named)
        # Without those at the end of an epoch, whose weights are already on disk.
        if given[0].step_in_epoch % per_epoch:
            seconds.append(time.process_time() - began)

    monkeypatch.setattr(Checkpoints, "save", timed)
    launch.train(tiny_recipe(*settings, *often, "task.test=8"), out, "cpu", None, watching)
    return watching.memory, seconds


def growth(memory: dict[int, int], first: int, last: int) -> float:
    """By how much the memory grew from one update to another; each is the median of ten measurements."""
    around = [
        statistics.median(value for step, value in memory.items() if end - 100 < step <= end) for end in (first, last)
    ]
    return around[1] / around[0] - 1


def test_a_longer_run_takes_no_more_memory_and_no_longer_checkpoints(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    memory, seconds = train(300, 150, 5, tmp_path, monkeypatch)
    assert growth(memory, 150, 300) < 0.05
    assert len(seconds) == 58
    # The soak test has a tight bound. Here, checkpoints that read the history again would take several times as long.
    assert statistics.median(seconds[-15:]) < 2 * statistics.median(seconds[:15])


@pytest.mark.soak
def test_a_hundred_thousand_updates_take_no_more_memory_and_no_longer_checkpoints(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    memory, seconds = train(100_000, 1000, 100, tmp_path, monkeypatch)
    tenth = len(seconds) // 10
    first, last = statistics.median(seconds[:tenth]), statistics.median(seconds[-tenth:])
    print(f"memory {memory[10_000] >> 20} → {memory[100_000] >> 20} MB, checkpoint {first:.5f} → {last:.5f} s")
    assert growth(memory, 10_000, 100_000) < 0.05
    assert last <= 1.2 * first
