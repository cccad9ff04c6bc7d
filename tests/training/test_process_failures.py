"""Several processes of one training of which one stops or fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cudt.runs.run import find_runs, open_run
from cudt.training.display import PlainDisplay
from cudt.training.view import TrainingView
from cudt.utils.errors import UserError
from tests.checkpoints import newest
from tests.conftest import TINY
from tests.processes import Ended, commands

TRAIN = (
    "train",
    "--recipe",
    "reviews-ut",
    "--device",
    "cpu",
    *(part for one in TINY for part in ("--set", one)),
)


def at_update(monkeypatch: pytest.MonkeyPatch, process: int, step: int, action) -> None:
    """Let one process do something after an update."""
    shown = PlainDisplay.update

    def update(self: PlainDisplay, view: TrainingView) -> None:
        shown(self, view)
        if os.environ.get("RANK") == str(process) and view.step == step:
            action()

    monkeypatch.setattr(PlainDisplay, "update", update)


def the_status(folder: Path) -> str | None:
    (path,) = find_runs([folder])
    return open_run(path).info().status


def test_a_stop_asked_of_one_process_stops_all_after_the_same_update(tmp_path, monkeypatch):
    at_update(monkeypatch, 1, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    ended = commands(2, *TRAIN, "--out", tmp_path)
    assert [one.code for one in ended] == [143, 143]
    (line,) = "".join(one.errors for one in ended).splitlines()
    assert line.endswith("interrupted; run the same command again to resume")
    assert the_status(tmp_path) == "interrupted"
    (path,) = find_runs([tmp_path])
    # Asked after update 2; the processes learn of it together, with the losses of the next one.
    assert newest(open_run(path)).progress.step == 3


def test_the_main_process_speaks_alone_and_a_finished_run_is_kept(tmp_path):
    first, *others = commands(2, *TRAIN, "--out", tmp_path)
    assert (first.code, first.errors) == (0, "")
    assert [
        first.output.count(text)
        for text in ("training reviews-ut", "epoch 2/2", "next: cudt eval-ood")
    ] == [1] * 3
    assert others == [Ended(0, "", "")]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    first, *others = commands(2, *TRAIN, "--out", tmp_path)
    assert first.output.count("already finished") == 1
    assert others == [Ended(0, "", "")]
    assert before == {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()
    }


def test_an_error_of_one_process_is_printed_by_it_and_ends_the_others(tmp_path, monkeypatch):
    def fail() -> None:
        raise UserError("clip 7: deleted")

    with monkeypatch.context() as patch:
        at_update(patch, 1, 2, fail)
        main, other = commands(2, *TRAIN, "--out", tmp_path)
    assert (other.code, other.errors) == (2, "error: process 1 of 2: clip 7: deleted\n")
    assert main.code == 1
    assert commands(2, *TRAIN, "--out", tmp_path)[0].code == 0
    assert the_status(tmp_path) == "finished"


def test_a_loss_that_is_not_finite_stops_all_with_one_line(tmp_path):
    ended = commands(2, *TRAIN, "--set", "training.learning_rate=1e30", "--out", tmp_path)
    assert [one.code for one in ended] == [1, 1]
    (line,) = "".join(one.errors for one in ended).splitlines()
    assert line.startswith("stopped: ")
    assert "not finite" in line
