"""A run that is stopped or killed at any moment, and started again, leaves the files of a run in one
go, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import pytest
import torch

from cudt.runs.run import run_for
from cudt.training import train as training
from cudt.utils.errors import TrainingInterruptedError, TrainingPrunedError
from tests.conftest import Stopping, quiet, tiny_recipe, train_quietly
from tests.processes import ending, in_child, together

#: Three updates an epoch: 2 is within the first, 3 and 6 are at the ends of epochs, 7 is within the
#: last.
STOPS = (2, 3, 6, 7)
SETTINGS = {
    "linear": ("descent.alpha=0.3", "training.checkpoint_every=2", "training.validate_every=2"),
    "slack": ("descent.resilience=slack", "descent.beta=1.0", "descent.alpha=0.3"),
    "log decay nupi": (
        *("descent.resilience=decay", "descent.beta=2.0", "descent.form=log"),
        *("descent.dual.optimizer=nupi", "training.accumulation=2"),
    ),
    "erm": ("objective=erm", "training.warmup_share=0.6", "training.schedule=cosine"),
}
WEIGHTS = ("checkpoints/best.safetensors", "checkpoints/last.safetensors")


def recipe_of(name: str) -> Any:
    objective = "erm" if name == "erm" else "constrained"
    return tiny_recipe("training.epochs=3", *SETTINGS[name], objective=objective)


def train(name: str, out: Path, stop: int = -1, how: signal.Signals = signal.SIGTERM) -> None:
    training.train(recipe_of(name), out, "cpu", None, Stopping(stop, how))


def in_new_process(*acts: Callable[[], object]) -> int:
    return ending(in_child(*acts))


def results(name: str, out: Path) -> dict[str, bytes]:
    run = run_for(recipe_of(name), out)
    assert run.info().status == "finished"
    assert not [path for path in run.path.rglob("*") if ".tmp" in path.name]
    assert not [*run.checkpoints.glob("checkpoint-*")]
    return {one: (run.path / one).read_bytes() for one in ("history.csv", "layers.csv", *WEIGHTS)}


@pytest.mark.parametrize("name", SETTINGS)
def test_stop_and_resume_in_new_processes_equals_one_go(tmp_path, name):
    assert in_new_process(lambda: train(name, tmp_path / "whole")) == 0
    for stop in STOPS:
        assert in_new_process(partial(train, name, tmp_path / "stopped", stop)) == 1
        assert run_for(recipe_of(name), tmp_path / "stopped").info().status == "interrupted"
    assert in_new_process(lambda: train(name, tmp_path / "stopped")) == 0
    assert results(name, tmp_path / "stopped") == results(name, tmp_path / "whole")


def test_the_first_signal_finishes_the_update_and_saves_it(tmp_path):
    with pytest.raises(TrainingInterruptedError, match="run the same command again") as stopped:
        train("slack", tmp_path, 4)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    folder = run_for(recipe_of("slack"), tmp_path).checkpoints / "checkpoint-2"
    assert torch.load(folder / "state.pt", weights_only=True)["progress"]["step"] == 4


def test_a_run_that_is_pruned_after_an_epoch_resumes(tmp_path):
    def prune(run: object) -> None:
        raise TrainingPrunedError("enough")

    with pytest.raises(TrainingPrunedError):
        training.train(recipe_of("slack"), tmp_path / "a", "cpu", None, quiet(), after_epoch=prune)
    info = run_for(recipe_of("slack"), tmp_path / "a").info()
    assert (info.status, info.reason) == ("interrupted", "enough")
    for out in ("a", "b"):
        train_quietly(recipe_of("slack"), tmp_path / out)
    assert results("slack", tmp_path / "a") == results("slack", tmp_path / "b")


# ---------------------------------------------------------------- kills

#: What changes files, in Python; libraries in other languages write between two of these.
CHANGES = ("replace", "rename", "fsync", "unlink", "mkdir", "rmdir", "open", "truncate")


def dying_at(counter: Any, moment: int) -> None:
    """Let this process be killed just before its n-th change of a file."""
    opened = os.open

    def watched(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        # A file that is opened for reading does not change.
        if original is not opened or (len(given) > 1 and given[1] & os.O_CREAT):
            counter.value += 1
            if counter.value == moment:
                os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **named)

    for name in CHANGES:
        setattr(os, name, partial(watched, getattr(os, name)))


def test_a_training_that_is_killed_at_changes_of_files_equals_one_go(tmp_path):
    counter, whole, killed = RawValue("l", 0), tmp_path / "whole", tmp_path / "killed"
    assert in_new_process(partial(dying_at, counter, -1), partial(train, "linear", whole)) == 0
    n_moments = counter.value
    for part in (12, 4, 9, 5, 14, 7):
        counter.value = 0
        die = partial(dying_at, counter, n_moments // part)
        assert in_new_process(die, partial(train, "linear", killed)) == -signal.SIGKILL
    assert in_new_process(lambda: train("linear", killed)) == 0
    assert results("linear", killed) == results("linear", whole)


@pytest.mark.parametrize("step", [1, 4, 6])
def test_a_training_that_is_killed_after_an_update_equals_one_go(tmp_path, step):
    assert in_new_process(lambda: train("slack", tmp_path / "whole")) == 0
    kill = lambda: train("slack", tmp_path / "killed", step, signal.SIGKILL)  # noqa: E731
    assert in_new_process(kill) == -signal.SIGKILL
    assert in_new_process(lambda: train("slack", tmp_path / "killed")) == 0
    assert results("slack", tmp_path / "killed") == results("slack", tmp_path / "whole")


# ---------------------------------------------------------------- several processes


def until_stopped(out: Path, stop: int, how: signal.Signals = signal.SIGTERM) -> None:
    with pytest.raises(TrainingInterruptedError):
        train("slack", out, stop, how)


def test_two_processes_resume_exactly_each_with_its_own_dropout(tmp_path):
    together(2, partial(train, "slack", tmp_path / "whole"))
    together(2, partial(until_stopped, tmp_path / "stopped", 4))
    together(2, partial(train, "slack", tmp_path / "stopped"))
    assert results("slack", tmp_path / "stopped") == results("slack", tmp_path / "whole")


def test_each_process_draws_its_own_dropout_also_one_that_joins_later(tmp_path):
    class Drawing(Stopping):
        drawn: list[float]

        def update(self, step: int, per_epoch: int, losses: Sequence[float]) -> None:
            self.drawn.append(torch.rand(()).item())
            super().update(step, per_epoch, losses)

    def draws(stop: int = -1) -> list[float]:
        display = Drawing(stop)
        display.drawn = []
        with contextlib.suppress(TrainingInterruptedError):
            training.train(tiny_recipe(), tmp_path, "cpu", None, display)
        return display.drawn

    first, second = together(2, partial(draws, 2))
    *resumed, new = together(3, draws)
    assert all((first, second, *resumed, new))
    drawn = [*first, *second, *resumed[0], *resumed[1], *new]
    assert len(drawn) == len(set(drawn))
