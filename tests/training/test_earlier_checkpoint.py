"""Runs that an earlier version of cudt left unfinished resume from its last.pt."""

from __future__ import annotations

import dataclasses
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from cudt.training.checkpoint import Checkpoints
from cudt.training.history import History
from cudt.training.state import TrainingState
from cudt.utils.device import random_state
from cudt.utils.errors import DamagedFileError, DataWarning
from tests.checkpoints import names
from tests.training.test_checkpoint import STATE, checkpoints


def stepped(tmp_path: Path) -> Checkpoints:
    """Those of a run whose optimiser has moments."""
    saved = checkpoints(tmp_path, 0)
    for value in saved.layerwise.parameters():
        value.grad = torch.ones_like(value)
    saved.optimizer.step()
    saved.descent.dual_step(torch.tensor([1.2, 1.4, 1.6]))
    return saved


def write_last(saved: Checkpoints, state: TrainingState, history: History, **changes: Any) -> None:
    """What `Checkpoints.save` of the version before did, word for word but for shards; None removes a key."""
    weights = saved.folder / f"step-{state.step}.safetensors"
    history.append(saved.run)
    weights.parent.mkdir(parents=True, exist_ok=True)
    save_file(saved.layerwise.learned_weights(), weights)
    progress = dataclasses.asdict(state)
    validation_losses = progress.pop("validation_losses")
    content: dict[str, Any] = {
        "progress": progress,
        "validation_losses": validation_losses,
        "weights_file": weights.name,
        "optimizer": saved.optimizer.state_dict(),
        "descent": saved.descent.state_dict(),
        "history_bytes": history.size,
        **random_state(),
        "other_generators": [],
    }
    content = {key: value for key, value in {**content, **changes}.items() if value is not None}
    torch.save(content, saved.folder / "last.pt")


def moments(saved: Checkpoints) -> list[torch.Tensor]:
    state = saved.optimizer.state_dict()["state"]
    return [value for values in state.values() for value in values.values()]


def assert_same(one: Checkpoints, other: Checkpoints) -> None:
    learned = other.layerwise.learned_weights()
    assert all(torch.equal(value, learned[name]) for name, value in one.layerwise.learned_weights().items())
    assert len(moments(one)) == len(moments(other)) > 0
    assert all(torch.equal(*pair) for pair in zip(moments(one), moments(other), strict=True))
    assert torch.equal(one.descent.multiplier_values, other.descent.multiplier_values)


def test_last_pt_resumes_and_is_replaced_at_the_next_checkpoint(tmp_path):
    first, history = stepped(tmp_path), History([(1, 1, "train", 1, "loss", 0.5)])
    write_last(first, STATE, history)
    drawn = torch.rand(3)
    second = checkpoints(tmp_path, 1)
    assert second.exist()
    state, resumed = second.restore()
    assert (state, resumed.saved()) == (STATE, history.saved())
    assert torch.equal(torch.rand(3), drawn)
    assert_same(first, second)
    second.save(replace(STATE, step=10), resumed)
    assert names(second.run) == ["checkpoint-1.json", "checkpoint-1.safetensors", "step-10.safetensors"]


def test_the_oldest_ones_have_the_weights_inside_and_the_best_epoch_is_chosen_anew(tmp_path):
    saved = stepped(tmp_path)
    old = dataclasses.asdict(STATE)
    for key in ("last_slack", "best_multipliers", "validation_losses"):
        del old[key]
    weights = saved.layerwise.learned_weights()
    write_last(
        saved, STATE, History(), progress=old, weights=weights, weights_file=None, history_bytes=None, history_length=0
    )
    (saved.folder / "step-9.safetensors").unlink()
    resumed = checkpoints(tmp_path, 1)
    with pytest.warns(DataWarning, match="chosen among those that follow"):
        state, _ = resumed.restore()
    assert_same(saved, resumed)
    # Ranks of different rules cannot be compared.
    assert state == replace(STATE, best=None, last_slack=[], best_multipliers=None)


KEYS = ("progress", "weights_file", "optimizer", "descent", "history_bytes", "generator")


@pytest.mark.parametrize("value", [None, 10**6, {}, "../../other"])
@pytest.mark.parametrize("key", KEYS)
def test_a_missing_or_bad_key_is_an_error_that_names_the_file(tmp_path, key, value):
    saved = checkpoints(tmp_path, 0)
    write_last(saved, STATE, History(), **{key: value})
    with pytest.raises(DamagedFileError, match=r"(last\.pt|history\.csv|step-9\.safetensors): damaged .*to train"):
        saved.restore()


def test_weights_that_are_cut_off_are_an_error(tmp_path):
    saved = checkpoints(tmp_path, 0)
    write_last(saved, STATE, History())
    os.truncate(saved.folder / "step-9.safetensors", 100)
    with pytest.raises(DamagedFileError, match=r"step-9.safetensors: damaged .*delete .* to train from the beginning"):
        checkpoints(tmp_path, 1).restore()


# ---------------------------------------------------------------- torch's distributed checkpoints


def write_shards(saved: Checkpoints) -> Path:
    """The folder that the version before wrote for shared weights, here by one process."""
    weights = {f"weights.{name}": value for name, value in saved.layerwise.learned_weights().items()}
    state = saved.optimizer.state_dict()["state"]
    kept = {f"optimizer.{index}.{name}": value for index, values in state.items() for name, value in values.items()}
    folder = saved.folder / "step-9"
    save(weights | kept, storage_writer=FileSystemWriter(folder), no_dist=True)
    groups = saved.optimizer.state_dict()["param_groups"]
    write_last(saved, STATE, History(), weights_file="step-9", optimizer={"param_groups": groups})
    return folder


def test_shards_of_an_earlier_version_resume(tmp_path):
    saved = stepped(tmp_path)
    write_shards(saved)
    resumed = checkpoints(tmp_path, 1)
    resumed.restore()
    assert_same(saved, resumed)


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


_MODULE = b"torch.distributed.checkpoint.filesystem"


def _call(name: bytes) -> bytes:
    """A pickle, in protocol 4, that calls what has this name in a module that the index may name."""
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text for text in (_MODULE, name))
    return b"\x80\x04" + texts + b"\x93\x8c\x08executed\x85R."


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (pickle.dumps(_Evil()), r"\w+\.mkdir"),
        (_call(b"os.mkdir"), r".*filesystem\.os\.mkdir"),
        (_call(b"FileSystem.mkdir"), r".*filesystem\.FileSystem\.mkdir"),
        (_call(b"FileSystemWriter"), r".*filesystem\.FileSystemWriter"),
    ],
)
def test_code_in_the_index_of_shards_is_not_executed(tmp_path, monkeypatch, content, named):
    monkeypatch.chdir(tmp_path)
    saved = stepped(tmp_path)
    (write_shards(saved) / ".metadata").write_bytes(content)
    with pytest.raises(DamagedFileError, match=rf"step-9: damaged \(refused to load {named}\)"):
        saved.restore()
    assert not Path("executed").exists()
