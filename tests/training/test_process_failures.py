"""Several processes of one training of which one stops, fails, ends or hangs: all stop, with one line."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cudt.runs.find import find_runs, open_run, run_for
from cudt.runs.run import Run
from cudt.training import launch
from cudt.training.checkpoint import Checkpoints, load_weights
from cudt.training.checkpoint_file import damage_of
from cudt.training.display import PlainDisplay
from cudt.training.view import TrainingView
from cudt.utils.errors import UserError
from tests.checkpoints import newest
from tests.conftest import TINY, tiny_recipe
from tests.processes import Ended, commands, together
from tests.training.test_processes import (
    assert_same_training,
    no_dropout,  # noqa: F401 - a fixture of every test
    some_slow,
    train,
    train_until,
)

# ---------------------------------------------------------------- machines that do not see the same files


def test_processes_with_folders_of_their_own_are_refused_before_they_train(tmp_path, monkeypatch):
    monkeypatch.setattr("cudt.utils.processes._VISIBLE", 0.5)
    monkeypatch.setattr(
        "cudt.training.launch.run_for", lambda recipe, out: run_for(recipe, Path(out, os.environ["RANK"]))
    )
    line = only_line(commands(2, *TRAIN, "--out", tmp_path), 2)
    assert line.startswith(f"error: process 1 of 2: {tmp_path / '1'}")
    assert line.endswith(
        "is not the folder of process 0; use a folder that all machines share, and the same path on each"
    )
    assert not [*tmp_path.rglob("run.json"), *tmp_path.rglob(".seen*")]


def test_all_processes_resume_if_the_main_one_has_a_checkpoint_and_from_the_same_one(tmp_path, monkeypatch):
    recipe, exist = tiny_recipe(), Checkpoints.exist
    together(1, lambda: train(recipe, tmp_path / "whole"))
    together(2, lambda: train_until(recipe, tmp_path / "stopped", 4))
    other = run_for(recipe, Path(shutil.copytree(tmp_path / "stopped", tmp_path / "other")))

    def sees_another_file(path: Path, expected: Any) -> str | None:
        is_newest = path.name == newest(other).state_file
        return "wrong checksum" if is_newest and os.environ["RANK"] == "1" else damage_of(path, expected)

    with monkeypatch.context() as patch:
        patch.setattr("cudt.training.checkpoint.damage_of", sees_another_file)
        main, second = commands(2, *TRAIN, "--out", tmp_path / "other")
    assert (main.code, second.code, second.errors) == (0, 0, "")
    assert main.errors.endswith("damaged (wrong checksum); resuming from update 3 instead\n")
    assert_same_training(run_for(recipe, tmp_path / "whole"), other)
    monkeypatch.setattr(Checkpoints, "exist", lambda self: os.environ["RANK"] == "0" and exist(self))
    together(2, lambda: train(recipe, tmp_path / "stopped"))
    assert_same_training(run_for(recipe, tmp_path / "whole"), run_for(recipe, tmp_path / "stopped"))


def test_a_verdict_on_different_weights_is_refused(tmp_path, monkeypatch):
    def load_other(run: Run) -> dict[str, torch.Tensor]:
        return {name: weight + int(os.environ["RANK"]) for name, weight in load_weights(run).items()}

    monkeypatch.setattr("cudt.training.checkpoint.load_weights", load_other)
    line = only_line(commands(2, *TRAIN, "--out", tmp_path), 2)
    assert "best.safetensors: the processes read different versions of it" in line


# ---------------------------------------------------------------- a process that ends or hangs

LOST = "processes ended or hangs ("
TRAIN = ("train", "--recipe", "reviews-ut", "--device", "cpu", *(part for one in TINY for part in ("--set", one)))


def at_update(monkeypatch: pytest.MonkeyPatch, process: int, step: int, action) -> None:
    """Let one process do something after an update."""
    shown = PlainDisplay.update

    def update(self: PlainDisplay, view: TrainingView) -> None:
        shown(self, view)
        if os.environ.get("RANK") == str(process) and view.step == step:
            action()

    monkeypatch.setattr(PlainDisplay, "update", update)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("killed", some_slow({0, 1}, range(3)))
def test_the_others_stop_with_one_line_if_a_process_is_killed_and_the_run_resumes_on_one(killed, tmp_path, monkeypatch):
    recipe = tiny_recipe("training.checkpoint_every=1")
    together(1, lambda: train(recipe, tmp_path / "whole"))
    with monkeypatch.context() as patch:
        at_update(patch, killed, 4, kill)
        began = time.monotonic()
        ended = commands(3, *TRAIN, "--set", "training.checkpoint_every=1", "--out", tmp_path / "killed")
        assert time.monotonic() - began < 60
    assert [one.code for one in ended] == [-signal.SIGKILL if number == killed else 1 for number in range(3)]
    (line,) = "".join(one.errors for one in ended).splitlines()
    run = run_for(recipe, tmp_path / "killed")
    assert line.startswith(f"{run.path}: another of the 3 {LOST}")
    assert line.endswith("; run the same command again, with any number of processes")
    assert run.info().status == "interrupted"
    assert LOST in (run.info().reason or "")
    assert newest(run).progress.step in (3, 4)
    together(1, lambda: train(recipe, tmp_path / "killed"))
    assert_same_training(run_for(recipe, tmp_path / "whole"), run)
    assert run.info().reason is None


@pytest.mark.parametrize("function", ["assemble", "_conclude"])
def test_another_process_speaks_if_the_main_one_is_killed_before_or_after_training(function, tmp_path, monkeypatch):
    original = getattr(launch, function)

    def killed(*given: Any, **named: Any) -> Any:
        if os.environ["RANK"] == "0":
            kill()
        return original(*given, **named)

    monkeypatch.setattr(launch, function, killed)
    ended = commands(3, *TRAIN, "--out", tmp_path)
    assert [one.code for one in ended] == [-signal.SIGKILL, 1, 1]
    (line,) = "".join(one.errors for one in ended).splitlines()
    assert line.startswith(f"another of the 3 {LOST}")
    assert line.endswith("; run the same command again, with any number of processes")


def test_updates_since_the_last_checkpoint_are_saved_if_another_process_is_killed(tmp_path, monkeypatch):
    at_update(monkeypatch, 1, 5, kill)
    commands(2, *TRAIN, "--out", tmp_path)
    (path,) = find_runs([tmp_path])
    # Without it, the checkpoint would be that of the first epoch, of three updates.
    assert newest(open_run(path)).progress.step == 5


def test_a_main_process_that_writes_slowly_is_not_taken_for_lost(tmp_path, monkeypatch):
    saved: list[Path] = []

    def save_slowly(tensors: dict[str, torch.Tensor], file: Path) -> None:
        saved.append(file)
        # Twice is enough.
        if len(saved) <= 2:
            time.sleep(2.5)
        save_file(tensors, file)

    monkeypatch.setattr("cudt.utils.processes.PATIENCE", timedelta(seconds=2.0))
    monkeypatch.setattr("cudt.training.checkpoint_file.save_file", save_slowly)
    ended = commands(2, *TRAIN, "--set", "training.checkpoint_every=2", "--out", tmp_path)
    assert [(one.code, one.errors) for one in ended] == [(0, ""), (0, "")]


def test_a_checkpoint_that_cannot_be_written_ends_all_with_one_line(tmp_path, monkeypatch):
    def fill(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cudt.training.checkpoint_file.save_file", fill)
    line = only_line(commands(2, *TRAIN, "--out", tmp_path), 1)
    assert "step-3.safetensors" in line
    assert line.endswith("and run the same command again")
    (path,) = find_runs([tmp_path])
    info = open_run(path).info()
    assert (info.status, "step-3.safetensors" in (info.reason or "")) == ("interrupted", True)


@pytest.mark.slow
def test_a_process_that_hangs_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("cudt.utils.processes.PATIENCE", timedelta(seconds=2))
    at_update(monkeypatch, 1, 2, lambda: time.sleep(6))
    ended = commands(2, *TRAIN, "--out", tmp_path)
    assert [one.code for one in ended] == [1, 1]
    (line,) = "".join(one.errors for one in ended).splitlines()
    assert LOST in line


# ---------------------------------------------------------------- stops and errors, once for all


def only_line(ended: list[Ended], code: int) -> str:
    """The one line that all processes together print to standard error."""
    assert [one.code for one in ended] == [code] * len(ended), ended
    (line,) = "".join(one.errors for one in ended).splitlines()
    return line


def test_a_stop_asked_of_one_process_stops_all_after_the_same_update(tmp_path, monkeypatch):
    at_update(monkeypatch, 1, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    line = only_line(commands(2, *TRAIN, "--out", tmp_path), 143)
    assert line.endswith("interrupted; run the same command again to resume")
    (path,) = find_runs([tmp_path])
    assert open_run(path).info().status == "interrupted"
    # Asked after update 2; the processes learn of it together, with the losses of the next one.
    assert newest(open_run(path)).progress.step == 3


def test_the_main_process_speaks_alone_and_a_finished_run_is_kept(tmp_path):
    first, *others = commands(3, *TRAIN, "--seed", "0", "1", "--out", tmp_path)
    assert (first.code, first.errors) == (0, "")
    assert [first.output.count(text) for text in ("training reviews-ut", "epoch 2/2", "next: cudt eval-ood")] == [
        2,
        2,
        1,
    ]
    assert others == [Ended(0, "", "")] * 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    first, *others = commands(3, *TRAIN, "--seed", "0", "1", "--out", tmp_path)
    assert first.output.count("already finished") == 2
    assert others == [Ended(0, "", "")] * 2
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}


def failing_in(process: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a function raise an error for the user in one process."""
    module, _, function = name.rpartition(".")
    original = getattr(importlib.import_module(module), function)

    def fail(*given: object, **options: object) -> object:
        if os.environ.get("RANK") == str(process):
            raise UserError("no such data")
        return original(*given, **options)

    monkeypatch.setattr(name, fail)


@pytest.mark.parametrize(
    "function", ["cudt.cli.options.check_data_root", "cudt.training.launch.run_for", "cudt.training.launch.assemble"]
)
def test_an_error_of_one_process_ends_all_with_one_line(function, tmp_path, monkeypatch):
    failing_in(1, function, monkeypatch)
    line = only_line(commands(2, *TRAIN, "--out", tmp_path / "out", "--data-root", tmp_path), 2)
    assert line == "error: process 1 of 2: no such data"
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "training.epoch=3"), "training.epoch: unknown key"),
        (("--set", "training.batch_size=1"), "error: training.batch_size: cannot split 1 examples"),
        (("--set", "training.readout_learning_rate=-1"), "error: "),
    ],
)
def test_so_does_an_error_of_all(arguments, message, tmp_path):
    assert message in only_line(commands(2, *TRAIN, *arguments, "--out", tmp_path), 2)


def test_a_run_that_another_command_uses_is_refused_by_all(tmp_path):
    with run_for(tiny_recipe(), tmp_path).locked():
        line = only_line(commands(2, *TRAIN, "--out", tmp_path), 2)
    assert "another process is using this run" in line


def test_a_loss_that_is_not_finite_stops_all_with_one_line(tmp_path):
    line = only_line(commands(2, *TRAIN, "--set", "training.learning_rate=1e30", "--out", tmp_path), 1)
    assert line.startswith("stopped: ")
    assert "not finite" in line


@pytest.mark.parametrize(
    ("error", "code", "begins"),
    [
        (UserError("clip 7: deleted"), 2, "error: process 1 of 2: clip 7: deleted\n"),
        (MemoryError(), 1, "stopped: process 1 of 2: "),
    ],
    ids=["user", "memory"],
)
def test_an_error_of_one_process_on_the_way_is_printed_by_it_and_stops_the_others(
    error, code, begins, tmp_path, monkeypatch
):
    def fail() -> None:
        raise error

    at_update(monkeypatch, 1, 2, fail)
    main, other = commands(2, *TRAIN, "--out", tmp_path)
    assert (other.code, len(other.errors.splitlines())) == (code, 1)
    assert other.errors.startswith(begins)
    assert main.code == 1
    assert LOST in main.errors
    assert len(main.errors.splitlines()) == 1
