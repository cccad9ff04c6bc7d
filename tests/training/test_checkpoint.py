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
from cudt.runs.run import run_for
from cudt.training.checkpoint import Checkpoints, discard, load_weights
from cudt.training.history import History
from cudt.training.state import TrainingState
from cudt.utils.errors import DamagedFileError, DataWarning, UserError
from tests.checkpoints import names
from tests.conftest import tiny_recipe

STATE = TrainingState(
    2,
    9,
    3,
    0.5,
    [0.0, 0.25],
    1,
    [0.1, 0.2, 0.3],
    [0.2, 0.3, 0.4],
    [1.0, 0.0, 2.0],
    validation_losses=[0.6, 0.5, 0.4],
)


def checkpoints(tmp_path, seed: int, *settings: str) -> Checkpoints:
    """Those of one run, around a new model."""
    problem = assemble(tiny_recipe(seed=seed), None, torch.device("cpu"))
    optimizer = torch.optim.Adam(problem.layerwise.parameters())
    return Checkpoints(
        run_for(tiny_recipe(*settings), tmp_path), problem.layerwise, optimizer, problem.descent
    )


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
    assert all(
        torch.equal(value, weights[name])
        for name, value in first.layerwise.learned_weights().items()
    )
    assert torch.equal(torch.rand(3), drawn)


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
    with pytest.raises(
        UserError, match=r"best\.safetensors: damaged \(missing\); delete .* to train again"
    ):
        load_weights(run)
    saved = checkpoints(tmp_path, 0)
    saved.save_weights("best", 9)
    content = bytearray(run.weights_file("best").read_bytes())
    content[-1] ^= 1
    run.weights_file("best").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"best\.safetensors: damaged \("):
        load_weights(run)


# ---------------------------------------------------------------- a process that dies


class DiedError(Exception):
    """The process ends here."""


def die_at(monkeypatch, change: int) -> None:
    """Let the process die before its nth change of the file system: a file made, synced, renamed,
    linked or deleted."""
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


def test_wherever_a_process_dies_there_is_a_whole_checkpoint(tmp_path, monkeypatch):
    completed = [dies_at(change, tmp_path / str(change), monkeypatch) for change in range(1, 40)]
    # Enough changes are tried.
    assert completed[-1]


def dies_at(change: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Save twice, dying at a change of the second time, and resume; whether the second checkpoint
    was complete."""
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
    # What is left over is deleted by the next checkpoint, and what it has beyond the last one is
    # not repeated.
    restored.rows.append((3, 1, "train", 1, "loss", 0.125))
    resumed.save(replace(STATE, step=3), restored)
    assert [name for name in names(resumed.run) if "step" in name] == [
        f"step-{state.step}.safetensors",
        "step-3.safetensors",
    ]
    assert not [name for name in names(resumed.run) if name.startswith(".")]
    steps = resumed.run.read_table("history")["step"].tolist()
    assert steps == ([1, 3] if state.step == 1 else [1, 2, 3])
    return is_complete


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
    assert names(saved.run) == kept
    for which in get_args(Weights):
        if f"{which}.safetensors" not in kept:
            expected = rf"{which}.safetensors: not kept \(checkpoints.keep: {keep}\).*cudt train --recipe .*recipe.yaml"
            with pytest.raises(UserError, match=expected):
                load_weights(saved.run.with_weights(which))


# ---------------------------------------------------------------- damage


def saved_twice(tmp_path) -> Checkpoints:
    """Those of a run with checkpoints of the updates 1 and 2, which differ in everything."""
    saved, history = checkpoints(tmp_path, 0), History()
    for step in (1, 2):
        weight(saved).data.fill_(step)
        history.rows.append((step, 1, "train", 1, "loss", 0.5))
        saved.save(replace(STATE, step=step), history)
    return saved


def test_two_checkpoints_are_kept_of_two_numbers_of_updates(tmp_path):
    saved, history, found = checkpoints(tmp_path, 0), History(), []
    # At the end of an epoch the same number of updates is saved twice, with different states.
    for step, epoch in ((1, 0), (2, 0), (2, 1), (3, 1), (3, 2)):
        saved.save(replace(STATE, step=step, epoch=epoch), history)
        found.append(
            [name for name in names(saved.run) if name.endswith(".json") or name.startswith("step")]
        )
    assert found == [
        ["checkpoint-1.json", "step-1.safetensors"],
        ["checkpoint-1.json", "checkpoint-2.json", "step-1.safetensors", "step-2.safetensors"],
        ["checkpoint-1.json", "checkpoint-3.json", "step-1.safetensors", "step-2.safetensors"],
        ["checkpoint-3.json", "checkpoint-4.json", "step-2.safetensors", "step-3.safetensors"],
        ["checkpoint-3.json", "checkpoint-5.json", "step-2.safetensors", "step-3.safetensors"],
    ]


@pytest.mark.parametrize(
    "name", ["checkpoint-2.json", "checkpoint-2.safetensors", "step-2.safetensors"]
)
def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used_until_the_next_replaces_it(
    tmp_path, name
):
    saved = saved_twice(tmp_path)
    file = saved.folder / name
    file.write_bytes(file.read_bytes()[:-1])
    resumed = checkpoints(tmp_path, 1)
    with pytest.warns(DataWarning) as said:
        state, history = resumed.restore()
    (line,) = [str(one.message) for one in said]
    assert line.startswith(f"{file}: damaged (")
    assert line.endswith("; resuming from update 1 instead")
    assert torch.all(weight(resumed) == 1)
    resumed.save(replace(state, step=2), history)
    assert [one for one in names(saved.run) if "json" in one] == [
        "checkpoint-1.json",
        "checkpoint-3.json",
    ]
    checkpoints(tmp_path, 1).restore()


def test_if_all_checkpoints_are_damaged_the_error_says_what_to_delete(tmp_path):
    saved = saved_twice(tmp_path)
    for file in saved.folder.glob("step-*"):
        file.unlink()
    advice = f"delete {saved.folder} to train from the beginning"
    with pytest.raises(DamagedFileError) as error:
        checkpoints(tmp_path, 1).restore()
    assert str(error.value) == f"{saved.folder / 'step-2.safetensors'}: damaged (missing); {advice}"


def test_a_resumed_run_also_keeps_two_numbers_of_updates(tmp_path):
    saved_twice(tmp_path)
    resumed = checkpoints(tmp_path, 1)
    state, history = resumed.restore()
    # As at the end of an epoch, after validation.
    resumed.save(replace(state, epoch=3), history)
    assert [name for name in names(resumed.run) if "step" in name] == [
        "step-1.safetensors",
        "step-2.safetensors",
    ]
    assert [name for name in names(resumed.run) if "json" in name] == [
        "checkpoint-1.json",
        "checkpoint-3.json",
    ]


def test_what_is_restored_does_not_change_with_the_file(tmp_path):
    saved = checkpoints(tmp_path, 0)
    for value in saved.layerwise.parameters():
        value.grad = torch.ones_like(value)
    saved.optimizer.step()
    saved.save(STATE, History())
    resumed = checkpoints(tmp_path, 1)
    resumed.restore()
    for file in saved.folder.glob("*.safetensors"):
        file.write_bytes(bytes(file.stat().st_size))
    for one, other in zip(
        saved.optimizer.state.values(), resumed.optimizer.state.values(), strict=True
    ):
        assert all(torch.equal(one[name], other[name]) for name in one)
