from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file

from cudt.config.schema import Weights
from cudt.models.assemble import assemble
from cudt.runs.find import run_for
from cudt.training.checkpoint import Checkpoints, TrainingState, discard, load_last, load_weights
from cudt.training.history import History
from cudt.utils.errors import DataWarning, UserError
from tests.conftest import tiny_recipe

STATE = TrainingState(
    2, 9, 3, 0.5, [0.0, 0.25], 1, [0.1, 0.2, 0.3], [0.2, 0.3, 0.4], [1.0, 0.0, 2.0], validation_losses=[0.6, 0.5, 0.4]
)


def checkpoints(tmp_path, seed: int, *settings: str) -> Checkpoints:
    """Those of one run, around a new model."""
    problem = assemble(tiny_recipe(seed=seed), None, torch.device("cpu"))
    optimizer = torch.optim.Adam(problem.layerwise.parameters())
    return Checkpoints(run_for(tiny_recipe(*settings), tmp_path), problem.layerwise, optimizer, problem.descent)


def test_everything_that_is_saved_is_restored_in_another_model(tmp_path):
    first, second = checkpoints(tmp_path, 0), checkpoints(tmp_path, 1)
    assert not first.exist()
    history = History([(1, 1, "train", 1, "loss", 0.5)])
    first.save(STATE, history)
    drawn = torch.rand(3)
    assert second.exist()
    state, resumed = second.restore()
    assert (state, resumed.size) == (STATE, history.size)
    assert second.run.read_table("history").values.tolist() == [[1, 1, "train", 1, "loss", 0.5]]
    weights = second.layerwise.learned_weights()
    assert all(torch.equal(value, weights[name]) for name, value in first.layerwise.learned_weights().items())
    assert torch.equal(torch.rand(3), drawn)


def test_the_file_has_these_keys(tmp_path):
    saved = checkpoints(tmp_path, 0)
    saved.save(STATE, History())
    content = load_last(saved.run)
    assert list(content) == [
        "progress",
        "validation_losses",
        "weights_file",
        "optimizer",
        "descent",
        "history_bytes",
        "generator",
        "device_generator",
        "other_generators",
    ]
    assert list(content["progress"]) == [
        "epoch",
        "step",
        "step_in_epoch",
        "sigma_x",
        "best",
        "best_epoch",
        "best_slack",
        "last_slack",
        "best_multipliers",
    ]


def test_a_checkpoint_of_an_earlier_version_resumes_and_the_best_epoch_is_chosen_anew(tmp_path):
    saved = checkpoints(tmp_path, 0)
    saved.save(STATE, History())
    content = load_last(saved.run)
    for key in ("last_slack", "best_multipliers"):
        del content["progress"][key]
    # They also kept the weights in the file itself, and counted the rows of history.csv.
    content["weights"] = load_file(saved.run.last_checkpoint.with_name(content.pop("weights_file")))
    del content["history_bytes"]
    content["history_length"] = 0
    saved.run.checkpoint_weights()[0].unlink()
    torch.save(content, saved.run.last_checkpoint)
    with pytest.warns(DataWarning, match="chosen among those that follow"):
        state, _ = (resumed := checkpoints(tmp_path, 1)).restore()
    learned = saved.layerwise.learned_weights()
    assert all(torch.equal(value, learned[name]) for name, value in resumed.layerwise.learned_weights().items())
    # Ranks of different rules cannot be compared.
    assert state == replace(STATE, best=None, last_slack=[], best_multipliers=None)


@pytest.mark.parametrize("which", ["best", "last"])
def test_the_saved_weights_are_those_of_the_model(tmp_path, which):
    saved = checkpoints(tmp_path, 0)
    saved.save_weights(which, 9)
    loaded = load_weights(saved.run.with_weights(which))
    learned = saved.layerwise.learned_weights()
    assert loaded.keys() == learned.keys()
    assert all(torch.equal(loaded[name], learned[name]) for name in learned)


def test_damaged_files_are_errors_that_name_the_file(tmp_path):
    run = checkpoints(tmp_path, 0).run
    run.weights_file("best").parent.mkdir(parents=True)
    with pytest.raises(UserError, match=r"best\.safetensors: missing or damaged .*delete .* to train again"):
        load_weights(run)
    with pytest.raises(UserError, match=r"last\.safetensors: missing \(earlier versions .* leave out --weights"):
        load_weights(run.with_weights("last"))
    run.last_checkpoint.write_text("junk")
    with pytest.raises(UserError, match=r"last\.pt: damaged .*delete it to train from the beginning"):
        load_last(run)


# ---------------------------------------------------------------- a process that dies


class DiedError(Exception):
    """The process ends here."""


def die_at(monkeypatch, change: int) -> None:
    """Let the process die before its nth change of the file system: a file made, synced, renamed, linked or deleted."""
    left = [change]

    def counted(function):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                raise DiedError
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(os, "link", counted(os.link))
    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))


def weight(saved: Checkpoints) -> torch.Tensor:
    return next(iter(saved.layerwise.learned_weights().values()))


@pytest.mark.parametrize("change", range(1, 16))
def test_wherever_a_process_dies_there_is_a_whole_checkpoint(tmp_path, monkeypatch, change):
    saved, history = checkpoints(tmp_path, 0), History([(1, 1, "train", 1, "loss", 0.5)])
    saved.save(replace(STATE, step=1), history)
    known = {1: (weight(saved).clone(), history.size)}
    weight(saved).data.add_(1)
    history.rows.append((2, 1, "train", 1, "loss", 0.25))
    with monkeypatch.context() as patch:
        die_at(patch, change)
        try:
            saved.save(replace(STATE, step=2), history)
            is_complete = True
        except DiedError:
            is_complete = False
    known[2] = (weight(saved).clone(), 0 if history.rows else history.size)
    resumed = checkpoints(tmp_path, 1)
    state, restored = resumed.restore()
    expected, size = known[state.step]
    assert torch.equal(weight(resumed), expected)
    assert restored.size == size
    assert state.step == 2 or not is_complete
    # What is left over is deleted by the next checkpoint, and what it has beyond the last one is not repeated.
    restored.rows.append((3, 1, "train", 1, "loss", 0.125))
    resumed.save(replace(STATE, step=3), restored)
    assert [path.name for path in resumed.run.checkpoint_weights()] == ["step-3.safetensors"]
    steps = resumed.run.read_table("history")["step"].tolist()
    assert steps == ([1, 3] if state.step == 1 else [1, 2, 3])


def test_enough_changes_are_tried(tmp_path, monkeypatch):
    saved = checkpoints(tmp_path, 0)
    saved.save(replace(STATE, step=1), History())
    die_at(monkeypatch, 15)
    saved.save(replace(STATE, step=2), History())


# ---------------------------------------------------------------- disk space


def test_the_best_and_the_last_weights_are_one_file_if_they_are_the_same(tmp_path):
    saved = checkpoints(tmp_path, 0)
    saved.save(STATE, History())
    saved.save_weights("best", 9)
    saved.save_weights("last", 9)
    best, last = (saved.run.weights_file(which) for which in ("best", "last"))
    assert best.samefile(last)
    weight(saved).data.add_(1)
    saved.save(replace(STATE, step=10), History())
    saved.save_weights("last", 10)
    name = next(iter(saved.layerwise.learned_weights()))
    assert torch.equal(load_file(last)[name], weight(saved))
    assert not torch.equal(load_file(best)[name], weight(saved))


def test_without_hard_links_the_weights_are_copied(tmp_path, monkeypatch):
    def no_links(*arguments, **options):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    saved = checkpoints(tmp_path, 0)
    saved.save(STATE, History())
    saved.save_weights("best", 9)
    (written,) = saved.run.checkpoint_weights()
    assert saved.run.weights_file("best").read_bytes() == written.read_bytes()
    assert not saved.run.weights_file("best").samefile(written)
    assert sorted(path.name for path in written.parent.iterdir()) == ["best.safetensors", "last.pt", written.name]


def test_the_weights_of_one_update_are_written_once(tmp_path):
    saved = checkpoints(tmp_path, 0)
    saved.save(STATE, History())
    (file,) = saved.run.checkpoint_weights()
    before = file.stat()
    saved.save(replace(STATE, epoch=3, step_in_epoch=0), History())
    resumed = checkpoints(tmp_path, 1)
    resumed.restore()
    resumed.save(STATE, History())
    after = file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_checkpoint_has_the_weights_once_and_is_as_large_as_the_optimizer(tmp_path):
    saved = checkpoints(tmp_path, 0)
    for value in saved.layerwise.parameters():
        value.grad = torch.ones_like(value)
    saved.optimizer.step()
    saved.save(STATE, History())
    n = sum(value.numel() for value in saved.layerwise.learned_weights().values())
    assert saved.run.last_checkpoint.stat().st_size < 4 * 2 * n + 40_000


@pytest.mark.parametrize(
    ("keep", "select", "kept"),
    [
        ("both", "best", ["best.safetensors", "last.safetensors"]),
        ("best", "best", ["best.safetensors"]),
        ("last", "last", ["last.safetensors"]),
        ("none-when-finished", "best", []),
        ("none-when-finished", "last", []),
    ],
)
def test_a_finished_run_keeps_the_weights_that_its_recipe_names(tmp_path, keep, select, kept):
    saved = checkpoints(tmp_path, 0, f"checkpoints.keep={keep}", f"training.select={select}")
    saved.save(STATE, History())
    for which in ("best", "last"):
        saved.save_weights(which, 9)
    assert saved.run.weights_file(select).is_file()
    discard(saved.run)
    assert sorted(path.name for path in saved.run.last_checkpoint.parent.iterdir()) == kept
    for which in get_args(Weights):
        if f"{which}.safetensors" not in kept:
            expected = rf"{which}.safetensors: not kept \(checkpoints.keep: {keep}\).*cudt train --recipe .*recipe.yaml"
            with pytest.raises(UserError, match=expected):
                load_weights(saved.run.with_weights(which))


def test_a_missing_file_of_weights_is_an_error(tmp_path):
    saved = checkpoints(tmp_path, 0)
    saved.save(STATE, History())
    saved.run.checkpoint_weights()[0].unlink()
    with pytest.raises(UserError, match=r"step-9.safetensors: missing or damaged .*delete .*last.pt to train from"):
        checkpoints(tmp_path, 1).restore()
