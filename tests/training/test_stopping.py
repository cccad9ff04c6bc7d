"""Runs that are stopped or killed, and resumed: what is left equals a run in one go."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from cudt.runs.find import find_runs, open_run, run_for
from cudt.training import launch
from cudt.training.checkpoint import load_last
from cudt.training.display import PlainDisplay
from cudt.training.history import History
from cudt.utils.errors import TrainingInterruptedError, TrainingPrunedError
from tests.conftest import TINY, quiet, tiny_recipe, train_quietly


def test_a_kill_between_history_and_checkpoint_repeats_no_row(tmp_path, monkeypatch):
    recipe = tiny_recipe("training.checkpoint_every=3")
    whole = train_quietly(recipe, tmp_path / "whole").read_table("history")
    append = History.append

    def die_after_validation(history, run) -> None:
        is_validated = any(row[2] == "validation" for row in history.rows)
        append(history, run)
        if is_validated:
            raise OSError("the disk went away")

    monkeypatch.setattr(History, "append", die_after_validation)
    with pytest.raises(OSError, match="the disk went away"):
        train_quietly(recipe, tmp_path / "killed")
    info = run_for(recipe, tmp_path / "killed").info()
    assert (info.status, info.reason) == ("failed", "OSError: the disk went away")
    monkeypatch.undo()
    resumed = train_quietly(recipe, tmp_path / "killed").read_table("history")
    pd.testing.assert_frame_equal(resumed, whole)


STOPPING = """
import os, signal, sys
from pathlib import Path
from rich.console import Console
import torch
torch.set_num_threads(1)
from cudt.config import recipe
from cudt.training import launch
from cudt.training.display import PlainDisplay

class Stopping(PlainDisplay):
    def update(self, view):
        if view.step == int(sys.argv[2]):
            os.kill(os.getpid(), int(sys.argv[3]))

loaded = recipe.load("reviews-ut", sys.argv[4:])
launch.train(loaded, Path(sys.argv[1]), "cpu", None, Stopping(Console()))
"""

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
    arguments = [str(out), str(stop_at), str(int(how)), *TINY, *settings]
    return subprocess.run([sys.executable, "-c", STOPPING, *arguments], capture_output=True, check=False).returncode


RESULTS = ("history.csv", "layers.csv", "checkpoints/best.safetensors", "checkpoints/last.safetensors")


def what_is_left(out: Path) -> dict[str, bytes]:
    (run,) = find_runs([out])
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    return {name: (run / name).read_bytes() for name in RESULTS}


@pytest.mark.parametrize("settings", GOING_ON, ids=["linear", "slack", "log-decay-nupi-micro", "erm"])
def test_stop_and_resume_in_new_processes_equals_one_go_bit_for_bit(tmp_path, settings):
    # Three updates an epoch: 2 is within the first, 3 and 6 are at the ends of epochs, 7 is within the last.
    assert in_new_process(tmp_path / "whole", -1, signal.SIGINT, settings) == 0
    for stop_at in (2, 3, 6, 7):
        assert in_new_process(tmp_path / "stopped", stop_at, signal.SIGINT, settings) == 1
    assert in_new_process(tmp_path / "stopped", -1, signal.SIGINT, settings) == 0
    assert what_is_left(tmp_path / "stopped") == what_is_left(tmp_path / "whole")


def test_a_killed_run_resumes_from_its_last_checkpoint_bit_for_bit(tmp_path):
    settings = GOING_ON[0]
    assert in_new_process(tmp_path / "whole", -1, signal.SIGINT, settings) == 0
    for stop_at in (1, 4, 6):
        assert in_new_process(tmp_path / "killed", stop_at, signal.SIGKILL, settings) == -signal.SIGKILL
    assert in_new_process(tmp_path / "killed", -1, signal.SIGINT, settings) == 0
    assert what_is_left(tmp_path / "killed") == what_is_left(tmp_path / "whole")


def test_an_interrupted_run_says_so_and_a_finished_one_is_not_redone(tmp_path):
    class Stopping(PlainDisplay):
        def update(self, view) -> None:
            if view.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    recipe = tiny_recipe()
    with pytest.raises(TrainingInterruptedError, match="run the same command again to resume"):
        launch.train(recipe, tmp_path, "cpu", None, Stopping(Console(quiet=True)))
    assert run_for(recipe, tmp_path).info().status == "interrupted"
    run = train_quietly(recipe, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()}
    train_quietly(recipe, tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_run_that_is_ended_after_an_epoch_says_why_and_resumes_bit_for_bit(tmp_path, epoch):
    recipe = tiny_recipe("training.epochs=3", "descent.resilience=slack", "descent.beta=1.0", "descent.alpha=0.3")
    validated: list[int] = []

    def end(run) -> None:
        history = run.read_table("history")
        validated.append(int(history.loc[history["split"] == "validation", "epoch"].max()))
        if validated[-1] == epoch:
            raise TrainingPrunedError("pruned, as planned")

    with pytest.raises(TrainingPrunedError):
        launch.train(recipe, tmp_path / "ended", "cpu", None, quiet(), after_epoch=end)
    run = run_for(recipe, tmp_path / "ended")
    assert (run.info().status, run.info().reason) == ("interrupted", "pruned, as planned")
    assert load_last(run)["progress"]["epoch"] == epoch
    # The last epoch cannot be the reason to end early, so nobody is asked.
    launch.train(recipe, tmp_path / "ended", "cpu", None, quiet(), after_epoch=end)
    assert run.info().reason is None
    assert validated == [1, 2][:epoch] + [2] * (2 - epoch)
    train_quietly(recipe, tmp_path / "whole")
    assert what_is_left(tmp_path / "ended") == what_is_left(tmp_path / "whole")


# Another process sends the signal, as schedulers and terminals do.
GROUP_STOPS = STOPPING.replace("os.kill(os.getpid(), int(sys.argv[3]))", "print('now', flush=True); time.sleep(1)")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_of_all_processes_saves_and_ends_the_workers(tmp_path, how):
    script = GROUP_STOPS.replace("import os,", "import os, time,")
    command = [sys.executable, "-c", script, str(tmp_path), "2", "", *TINY, "loading.workers=2"]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert started.stdout is not None
        assert any(line == "now\n" for line in started.stdout)
        os.killpg(started.pid, how)
        # Until all processes have ended, and closed it.
        _, errors = started.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert "DataLoader worker" not in errors
    assert "TrainingInterruptedError" in errors
    (path,) = find_runs([tmp_path])
    assert open_run(path).info().status == "interrupted"
