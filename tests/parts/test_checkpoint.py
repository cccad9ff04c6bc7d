"""The folders of checkpoints, and what a damaged one does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from cudt.runs.run import Run, run_for
from cudt.training import train as training
from cudt.utils.errors import DamagedFileError, DataWarning, TrainingInterruptedError, UserError
from tests.conftest import Stopping, tiny_recipe, train_quietly

#: Three updates an epoch, six in all.
RECIPE = tiny_recipe("training.checkpoint_every=2", "descent.alpha=0.5")
FILES = ["SHA256SUMS", "model.safetensors", "state.pt"]


def stopped_run(out: Path, step: int = 5) -> Run:
    with pytest.raises(TrainingInterruptedError):
        training.train(RECIPE, out, "cpu", None, Stopping(step))
    return run_for(RECIPE, out)


def names(run: Run) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    return train_quietly(RECIPE, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def stopped(tmp_path) -> Run:
    return stopped_run(tmp_path)


def assert_same(run: Run, other: Run) -> None:
    weights = [f"checkpoints/{which}.safetensors" for which in ("best", "last")]
    for name in ("history.csv", "layers.csv", *weights):
        assert (run.path / name).read_bytes() == (other.path / name).read_bytes(), name


def test_the_two_newest_are_kept_each_with_its_digests(stopped):
    # After updates 2, 3 (the end of the epoch) and 5, where it was stopped.
    assert names(stopped) == ["best.safetensors", "checkpoint-2", "checkpoint-3"]
    for number, step in ((2, 3), (3, 5)):
        folder = stopped.checkpoints / f"checkpoint-{number}"
        assert sorted(path.name for path in folder.iterdir()) == FILES
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], check=True, cwd=folder)
        state = torch.load(folder / "state.pt", weights_only=True)
        assert state["progress"]["step"] == step
    assert stopped.info().status == "interrupted"


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_one_is_skipped_with_a_warning_and_nothing_else_changes(stopped, whole, name):
    file = stopped.checkpoints / "checkpoint-3" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.warns(DataWarning, match=r"checkpoint-3: damaged .* skipped"):
        train_quietly(RECIPE, stopped.path.parents[1])
    assert_same(stopped, whole)


def test_if_none_is_intact_training_says_so(stopped):
    for number in (2, 3):
        (stopped.checkpoints / f"checkpoint-{number}" / "model.safetensors").unlink()
    with (
        pytest.warns(DataWarning, match="damaged"),
        pytest.raises(DamagedFileError, match="no checkpoint is intact"),
    ):
        train_quietly(RECIPE, stopped.path.parents[1])


def test_code_in_a_checkpoint_is_not_run(stopped, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    folder = stopped.checkpoints / "checkpoint-3"
    torch.save({"progress": Evil()}, folder / "state.pt")
    lines = subprocess.run(["sha256sum", *FILES[1:]], cwd=folder, capture_output=True, check=True)
    (folder / "SHA256SUMS").write_bytes(lines.stdout)
    with pytest.raises(Exception, match="Weights only load failed"):
        train_quietly(RECIPE, stopped.path.parents[1])
    assert not (tmp_path / "ran").exists()


def test_weights_of_another_model_are_refused():
    problem = training.assemble_model(RECIPE, None, torch.device("cpu"))
    weights = problem.learned_weights()
    name = sorted(weights)[0]
    with pytest.raises(UserError, match="does not fit this model: unexpected key 'strange'"):
        problem.load_learned_weights({**weights, "strange": weights[name]})
    del weights[name]
    with pytest.raises(UserError, match=f"does not fit this model: missing key '{name}'"):
        problem.load_learned_weights(weights)
