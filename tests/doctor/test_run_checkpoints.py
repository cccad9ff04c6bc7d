from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from cudt.doctor import Diagnosis, run_checkpoints, runs
from cudt.runs.find import run_for
from cudt.runs.run import Run
from cudt.training import launch
from cudt.training.checkpoint_file import FileRecord, numbers_in, write
from cudt.utils.errors import TrainingPrunedError, UserError
from tests.checkpoints import newest, newest_file
from tests.conftest import quiet, tiny_recipe, train_quietly
from tests.doctor.conftest import bad, scope

RECIPE = tiny_recipe("training.epochs=3")


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Path:
    """The folder of a run that was ended after two of three epochs."""
    out = tmp_path_factory.mktemp("ended")

    def end(run: Run) -> None:
        if set(run.read_table("history")["epoch"]) >= {1, 2}:
            raise TrainingPrunedError("as planned")

    with pytest.raises(TrainingPrunedError):
        launch.train(RECIPE, out, "cpu", None, quiet(), after_epoch=end)
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    return tables(train_quietly(RECIPE, tmp_path_factory.mktemp("whole")).path)


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (*folder.glob("*.csv"), *folder.glob("checkpoints/*"))}


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Run:
    shutil.copytree(ended, tmp_path, dirs_exist_ok=True)
    return run_for(RECIPE, tmp_path)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def problems(run: Run) -> list[Diagnosis]:
    return bad(runs.CHECK, scope(run.path.parent.parent))


def test_intact_checkpoints_are_in_order(run):
    assert len(numbers_in(run.checkpoints)) == 2
    assert problems(run) == []


@pytest.mark.parametrize("what", ["json", "weights", "state", "history"])
def test_a_damaged_newest_checkpoint_is_deleted_and_training_resumes_to_the_same_numbers(run, whole, what):
    content, before = newest(run), numbers_in(run.checkpoints)
    damaged = {
        "json": newest_file(run),
        "weights": run.checkpoints / content.weights,
        "state": run.checkpoints / content.state_file,
        "history": run.path / "history.csv",
    }[what]
    damaged.write_bytes(damaged.read_bytes()[:-9]) if what == "history" else flip(damaged)
    found = [one for one in problems(run) if "checkpoint-" in one.title]
    assert [one.severity for one in found] == ["warning"]
    assert found[0].fix is not None
    assert "checkpoint-" in found[0].fix()
    assert numbers_in(run.checkpoints) == before[1:]
    assert [one for one in problems(run) if "checkpoint-" in one.title] == []
    train_quietly(RECIPE, run.path.parent.parent)
    assert tables(run.path) == whole


def test_a_file_behind_a_link_is_never_deleted(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    mine = elsewhere / "authorized_keys"
    mine.write_text("mine")
    (run.checkpoints / "home").symlink_to(elsewhere)
    file = newest_file(run)
    content = newest(run)
    files = {**content.files, "home/authorized_keys": FileRecord(bytes=4, sha256="0" * 64)}
    write(file, content.model_copy(update={"files": files}))
    (one,) = (one for one in problems(run) if one.fix is not None)
    assert "authorized_keys" in one.title
    assert one.fix is not None
    with pytest.raises(UserError, match="authorized_keys is a link out of the run's folder, or below one"):
        one.fix()
    assert mine.read_text() == "mine"
    assert file.is_file()


def test_if_no_checkpoint_is_intact_nothing_is_deleted(run):
    for path in run.checkpoints.glob("checkpoint-*.json"):
        path.write_text("{}")
    before = sorted(run.checkpoints.iterdir())
    assert {(one.severity, one.fix) for one in problems(run)} == {("problem", None)}
    assert sorted(run.checkpoints.iterdir()) == before


def test_if_the_disk_cannot_be_read_nothing_is_to_be_deleted(run, monkeypatch):
    opened = Path.open

    def fail(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == run.path / "history.csv":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail)
    found = list(run_checkpoints.check(run.path))
    assert [one.advice for one in found] == ["check the disk, and resume the run"] * 2
