"""What several tests need: a recipe small enough for seconds, and a trained run."""

from __future__ import annotations

import gc
import os
import signal

# Read once, when a library of the hub is imported, which test modules do at once.
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cudt.config import recipe
from cudt.config.recipe import NamedRecipe
from cudt.runs.run import Run
from cudt.training import train as training
from cudt.training.display import Display
from cudt.utils.device import survive_torchvision_mismatch

# Before a test's file imports transformers or Lightning.
survive_torchvision_mismatch()

#: Shrinks reviews-ut to a second of training, without changing any path through the code.
TINY = (
    "task.train=96",
    "task.validation=40",
    "task.test=40",
    "model.layers=3",
    "model.width=16",
    "model.attention_width=8",
    "training.epochs=2",
    "training.batch_size=32",
    "training.log_every=1",
    "evaluation.gammas=0,0.5,1",
)


def tiny_recipe(*overrides: str, objective: str = "constrained", seed: int = 0) -> NamedRecipe:
    return recipe.load("reviews-ut", (*TINY, *overrides), objective=objective, seed=seed)


def quiet() -> Display:
    return Display(Console(quiet=True))


class Stopping(Display):
    """A quiet display that sends a signal to its own process after an update."""

    def __init__(self, step: int, how: signal.Signals = signal.SIGTERM) -> None:
        super().__init__(Console(quiet=True))
        self.step, self.how = step, how

    def update(self, step: int, per_epoch: int, losses: Sequence[float]) -> None:
        # As dropout does: what is drawn here has to go on, too.
        torch.rand(3)
        if step == self.step:
            os.kill(os.getpid(), self.how)


def train_quietly(loaded: NamedRecipe, out: Path) -> Run:
    return training.train(loaded, out, "cpu", None, quiet())


def pytest_collection_finish() -> None:
    """Leave all that was imported out of later garbage collections, which every transformers.Trainer starts."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run side by side, so each takes one core; none may reach for the hub, nor what it starts."""
    torch.set_num_threads(1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True, scope="session")
def _a_cache_of_its_own_and_no_syncing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing has to outlive a power cut, and syncing files takes longer than many tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)
        patch.setenv("CUDT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished tiny constrained run; tests that write into it take a copy."""
    torch.set_num_threads(1)
    return train_quietly(tiny_recipe(), tmp_path_factory.mktemp("outputs"))
