"""Faults while a run resumes or ends: an intact checkpoint is never called damaged, and nothing is left undecided."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from cudt.runs import checksums
from cudt.training.checkpoint import Checkpoints, discard, load_same_weights
from cudt.training.history import History
from cudt.training.state import TrainingState
from cudt.utils import processes
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.files import digest_of
from tests.checkpoints import newest
from tests.training.test_checkpoint import STATE, checkpoints, saved_twice, weight


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise error

    return fail


# ---------------------------------------------------------------- bad sectors


def bad_sector(monkeypatch, *files: Path, number: int = errno.EIO) -> None:
    """Let every attempt to open these files fail."""
    opened = Path.open

    def fail(path: Path, *arguments: Any, **options: Any) -> Any:
        if path in files:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail)


@pytest.mark.parametrize("name", ["checkpoint-2.json", "checkpoint-2.safetensors", "step-2.safetensors"])
def test_a_checkpoint_on_a_bad_sector_is_damaged_and_the_one_before_is_used(tmp_path, monkeypatch, name):
    saved = saved_twice(tmp_path)
    bad_sector(monkeypatch, saved.folder / name)
    with pytest.warns(DataWarning, match=rf"{name}: damaged \(cannot be read: .*; resuming from update 1 instead"):
        assert checkpoints(tmp_path, 1).restore()[0].step == 1


def test_if_nothing_can_be_read_the_disk_is_to_blame_and_nothing_is_to_be_deleted(tmp_path, monkeypatch):
    saved = saved_twice(tmp_path)
    bad_sector(monkeypatch, saved.run.path / "history.csv")
    with pytest.raises(OSError, match=r"history\.csv"):
        checkpoints(tmp_path, 1).restore()
    monkeypatch.undo()
    saved.folder.joinpath("step-2.safetensors").unlink()
    bad_sector(monkeypatch, saved.folder / "step-1.safetensors")
    with pytest.raises(OSError, match=r"step-1"):
        checkpoints(tmp_path, 1).restore()


def test_other_faults_of_a_disk_are_no_damage(tmp_path, monkeypatch):
    saved = saved_twice(tmp_path)
    bad_sector(monkeypatch, saved.folder / "step-2.safetensors", number=errno.ESTALE)
    with pytest.raises(OSError, match=r"step-2") as raised:
        checkpoints(tmp_path, 1).restore()
    assert raised.value.errno == errno.ESTALE


# ---------------------------------------------------------------- the best weights

ONE, TWO, THREE = (
    replace(STATE, epoch=number, step=3 * number, step_in_epoch=0, best_epoch=number, best=[0.0, 1 / number])
    for number in (1, 2, 3)
)


def epoch_ended(saved: Checkpoints, history: History, state: TrainingState, *, is_best: bool) -> None:
    """Save as the trainer does after an epoch, whose weights are the number of its update."""
    weight(saved).data.fill_(state.step)
    if is_best:
        saved.save_weights("best", state.step)
    saved.save(state, history)


def best_weight(saved: Checkpoints) -> float:
    name = next(iter(saved.layerwise.learned_weights()))
    return load_file(saved.run.weights_file("best"))[name].flatten()[0].item()


def flip_last_byte(file: Path) -> None:
    """Damage a file in place, so that all its names are damaged."""
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([byte ^ 1]))


def test_the_best_weights_of_a_discarded_epoch_are_replaced_by_those_of_the_checkpoint(tmp_path):
    saved, history = checkpoints(tmp_path, 0, "training.epochs=5"), History()
    epoch_ended(saved, history, ONE, is_best=True)
    epoch_ended(saved, history, TWO, is_best=True)
    (saved.folder / "checkpoint-2.json").unlink()
    resumed = checkpoints(tmp_path, 1, "training.epochs=5")
    state, history = resumed.restore()
    assert state == ONE
    assert best_weight(resumed) == 3
    assert checksums.damaged_files(resumed.run.path) == []
    # The repeated epoch is not the best one, as it can be on another device.
    epoch_ended(resumed, history, replace(TWO, best_epoch=1), is_best=False)
    assert newest(resumed.run).best == digest_of(resumed.run.weights_file("best"))
    assert best_weight(resumed) == 3


def test_best_weights_that_no_file_has_are_lost_and_said_so(tmp_path):
    saved, history = checkpoints(tmp_path, 0, "training.epochs=5"), History()
    epoch_ended(saved, history, ONE, is_best=True)
    epoch_ended(saved, history, replace(TWO, best_epoch=1), is_best=False)
    epoch_ended(saved, history, THREE, is_best=True)
    (saved.folder / "checkpoint-3.json").write_text("{")
    resumed = checkpoints(tmp_path, 1, "training.epochs=5")
    with pytest.warns(DataWarning) as said:
        state, _ = resumed.restore()
    assert str(said[-1].message) == (
        f"{saved.run.weights_file('best')}: damaged (the weights of epoch 1, the best one so far, are lost); "
        "the best epoch is chosen among those that follow"
    )
    assert (state.step, state.best, state.best_epoch) == (6, None, 0)


def test_one_damaged_file_that_is_the_older_checkpoint_and_the_best_weights_does_not_end_a_run(tmp_path):
    saved, history = checkpoints(tmp_path, 0, "training.epochs=5"), History()
    epoch_ended(saved, history, ONE, is_best=True)
    epoch_ended(saved, history, replace(TWO, best_epoch=1), is_best=False)
    assert saved.run.weights_file("best").samefile(saved.folder / "step-3.safetensors")
    flip_last_byte(saved.folder / "step-3.safetensors")
    resumed = checkpoints(tmp_path, 1, "training.epochs=5")
    with pytest.warns(DataWarning, match=r"best\.safetensors: .* epoch 1, .* lost\); the best epoch is chosen among"):
        state, history = resumed.restore()
    assert (state.step, state.best, state.best_epoch) == (6, None, 0)
    # It is said once.
    resumed.save(replace(state, step=7), history)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoints(tmp_path, 1, "training.epochs=5").restore()[0].best is None


def test_after_the_last_epoch_lost_best_weights_are_those_of_the_last(tmp_path):
    saved, history = checkpoints(tmp_path, 0, "training.epochs=2"), History()
    epoch_ended(saved, history, ONE, is_best=True)
    epoch_ended(saved, history, replace(TWO, best_epoch=1), is_best=False)
    saved.run.weights_file("best").unlink()
    (saved.folder / "step-3.safetensors").unlink()
    resumed = checkpoints(tmp_path, 1, "training.epochs=2")
    with pytest.warns(DataWarning, match=r"are lost\); the last epoch is used instead"):
        state, _ = resumed.restore()
    assert (state.best_epoch, state.best_slack) == (2, TWO.last_slack)
    assert best_weight(resumed) == 6


def test_a_kill_between_choosing_an_epoch_and_saving_that_is_no_damage(tmp_path, recwarn):
    saved, history = checkpoints(tmp_path, 0, "training.epochs=5"), History()
    epoch_ended(saved, history, ONE, is_best=True)
    epoch_ended(saved, history, replace(TWO, best_epoch=1), is_best=False)
    # As before the validation of the third epoch.
    before = replace(THREE, epoch=2, step_in_epoch=3, best=ONE.best, best_epoch=1)
    epoch_ended(saved, history, before, is_best=False)
    saved.save_weights("best", 9)
    resumed = checkpoints(tmp_path, 1, "training.epochs=5")
    state, _ = resumed.restore()
    assert (state.step, state.best) == (9, None)
    assert best_weight(resumed) == 9
    assert not [one for one in recwarn if issubclass(one.category, DataWarning)]


def test_damaged_best_weights_are_restored_from_a_checkpoint_that_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", failing(OSError("no hard links")))
    saved = checkpoints(tmp_path, 0, "training.epochs=5")
    epoch_ended(saved, History(), ONE, is_best=True)
    flip_last_byte(saved.run.weights_file("best"))
    resumed = checkpoints(tmp_path, 1, "training.epochs=5")
    with pytest.warns(DataWarning, match=r"best\.safetensors: damaged; restored from step-3\.safetensors"):
        assert resumed.restore()[0] == ONE
    assert best_weight(resumed) == 3


# ---------------------------------------------------------------- several machines


@pytest.mark.parametrize(
    ("of_main", "expected"),
    [("intact", r"processes read different versions of it, .*; wait a minute"), (None, r"damaged \(its content")],
)
def test_a_machine_that_shows_the_file_before_is_not_told_that_it_is_damaged(tmp_path, monkeypatch, of_main, expected):
    saved = checkpoints(tmp_path, 0)
    saved.save_weights("best", 9)
    flip_last_byte(saved.run.weights_file("best"))
    monkeypatch.setattr(processes, "gathered", lambda mine: [of_main, mine])
    with pytest.raises(UserError, match=expected):
        load_same_weights(saved.run)


# ---------------------------------------------------------------- the end of a run


def test_a_run_that_is_killed_while_its_weights_are_deleted_has_no_damaged_files(tmp_path, monkeypatch):
    saved = checkpoints(tmp_path, 0, "checkpoints.keep=none-when-finished")
    saved.save_weights("best", 9)
    best = saved.run.weights_file("best")
    unlink = Path.unlink

    def killed_after(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        if path == best:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", killed_after)
    with pytest.raises(KeyboardInterrupt):
        discard(saved.run)
    assert checksums.damaged_files(saved.run.path) == []
