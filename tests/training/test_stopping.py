"""Runs that are stopped or killed, and resumed: what is left equals a run in one go."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from cudt.config import recipe
from cudt.runs.run import find_runs, run_for
from cudt.training import launch
from cudt.training.display import PlainDisplay
from cudt.training.history import History
from cudt.training.view import TrainingView
from cudt.utils.errors import MachineFaultError, TrainingInterruptedError, TrainingPrunedError
from tests.checkpoints import newest
from tests.conftest import TINY, quiet, tiny_recipe, train_quietly
from tests.processes import ending, in_child


def test_a_kill_between_history_and_checkpoint_repeats_no_row(tmp_path, monkeypatch):
    tiny = tiny_recipe("training.checkpoint_every=3")
    whole = train_quietly(tiny, tmp_path / "whole").read_table("history")
    append = History.append

    def die_after_validation(history, run) -> None:
        is_validated = any(row[2] == "validation" for row in history.rows)
        append(history, run)
        if is_validated:
            raise OSError("the disk went away")

    monkeypatch.setattr(History, "append", die_after_validation)
    with pytest.raises(MachineFaultError, match="the disk went away"):
        train_quietly(tiny, tmp_path / "killed")
    assert run_for(tiny, tmp_path / "killed").info().status == "interrupted"
    monkeypatch.undo()
    resumed = train_quietly(tiny, tmp_path / "killed").read_table("history")
    pd.testing.assert_frame_equal(resumed, whole)


class Stopping(PlainDisplay):
    """Sends a signal to its own process after an update."""

    def __init__(self, step: int, how: signal.Signals = signal.SIGINT) -> None:
        super().__init__(Console(quiet=True))
        self._step, self._how = step, how

    def update(self, view: TrainingView) -> None:
        if view.step == self._step:
            os.kill(os.getpid(), self._how)


GOING_ON = [
    ("training.epochs=3", "descent.alpha=0.3", "training.checkpoint_every=2"),
    ("training.epochs=3", "descent.resilience=slack", "descent.beta=1.0", "descent.alpha=0.3"),
    (
        "training.epochs=3",
        "descent.resilience=decay",
        "descent.beta=2.0",
        "descent.form=log",
        "descent.dual.optimizer=nupi",
        "training.accumulation=2",
    ),
    ("training.epochs=3", "objective=erm", "training.warmup_share=0.6"),
]


def in_new_process(out: Path, stop_at: int, how: signal.Signals, settings: tuple[str, ...]) -> int:
    def train() -> None:
        launch.train(
            recipe.load("reviews-ut", (*TINY, *settings)), out, "cpu", None, Stopping(stop_at, how)
        )

    return ending(in_child(train))


RESULTS = (
    "history.csv",
    "layers.csv",
    "checkpoints/best.safetensors",
    "checkpoints/last.safetensors",
)


def what_is_left(out: Path) -> dict[str, bytes]:
    (run,) = find_runs([out])
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    return {name: (run / name).read_bytes() for name in RESULTS}


@pytest.mark.parametrize(
    "settings", GOING_ON, ids=["linear", "slack", "log-decay-nupi-micro", "erm"]
)
def test_stop_and_resume_in_new_processes_equals_one_go_bit_for_bit(tmp_path, settings):
    # Three updates an epoch: 2 is within the first, 3 and 6 are at the ends of epochs, 7 is within
    # the last.
    assert in_new_process(tmp_path / "whole", -1, signal.SIGINT, settings) == 0
    for stop_at in (2, 3, 6, 7):
        assert in_new_process(tmp_path / "stopped", stop_at, signal.SIGINT, settings) == 1
    assert in_new_process(tmp_path / "stopped", -1, signal.SIGINT, settings) == 0
    assert what_is_left(tmp_path / "stopped") == what_is_left(tmp_path / "whole")


def test_a_killed_run_resumes_from_its_last_checkpoint_bit_for_bit(tmp_path):
    settings = GOING_ON[0]
    assert in_new_process(tmp_path / "whole", -1, signal.SIGINT, settings) == 0
    for stop_at in (1, 4, 6):
        assert (
            in_new_process(tmp_path / "killed", stop_at, signal.SIGKILL, settings)
            == -signal.SIGKILL
        )
    assert in_new_process(tmp_path / "killed", -1, signal.SIGINT, settings) == 0
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


def test_an_interrupted_run_says_so_and_a_finished_one_is_not_redone(tmp_path):
    tiny = tiny_recipe()
    with pytest.raises(
        TrainingInterruptedError, match="run the same command again to resume"
    ) as raised:
        launch.train(tiny, tmp_path, "cpu", None, Stopping(2, signal.SIGTERM))
    assert (run_for(tiny, tmp_path).info().status, raised.value.exit_code) == ("interrupted", 143)
    run = train_quietly(tiny, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()}
    train_quietly(tiny, tmp_path)
    assert before == {
        path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_run_that_is_ended_after_an_epoch_says_why_and_resumes_bit_for_bit(tmp_path, epoch):
    tiny = tiny_recipe(
        "training.epochs=3", "descent.resilience=slack", "descent.beta=1.0", "descent.alpha=0.3"
    )
    validated: list[int] = []

    def end(run) -> None:
        history = run.read_table("history")
        validated.append(int(history.loc[history["split"] == "validation", "epoch"].max()))
        if validated[-1] == epoch:
            raise TrainingPrunedError("pruned, as planned")

    with pytest.raises(TrainingPrunedError):
        launch.train(tiny, tmp_path / "ended", "cpu", None, quiet(), after_epoch=end)
    run = run_for(tiny, tmp_path / "ended")
    assert (run.info().status, run.info().reason) == ("interrupted", "pruned, as planned")
    assert newest(run).progress.epoch == epoch
    # The last epoch cannot be the reason to end early, so nobody is asked.
    launch.train(tiny, tmp_path / "ended", "cpu", None, quiet(), after_epoch=end)
    assert run.info().reason is None
    assert validated == [1, 2][:epoch] + [2] * (2 - epoch)
    train_quietly(tiny, tmp_path / "whole")
    assert what_is_left(tmp_path / "ended") == what_is_left(tmp_path / "whole")
