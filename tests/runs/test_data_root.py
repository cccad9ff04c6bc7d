from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cudt.runs.data_root import data_root_of
from cudt.runs.find import open_run
from cudt.runs.info import RunInfo
from cudt.runs.run import Run
from cudt.training import train as training
from cudt.utils.errors import UserError
from tests import instructions
from tests.pretrained import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A data root with instructions and a model in it."""
    folder = tmp_path_factory.mktemp("root")
    instructions.write_instructions(folder)
    tiny_llama(folder / "models" / "tiny")
    instructions.write_recipe(folder, "tiny")
    return folder


@pytest.fixture(scope="module")
def run(folder) -> Run:
    return instructions.train(folder, folder / "outputs", "training.epochs=1")


def test_the_data_root_of_training_is_that_of_later_commands(run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run.info().data_root == str(folder)
    assert training.load(run, "cpu", None).task.examples("test")
    with data_root_of(run, tmp_path) as root:
        assert root == tmp_path


def test_a_data_root_that_is_gone_is_named_by_the_error(run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = open_run(Path(shutil.copytree(run.path, tmp_path / "copy")))
    copy.update_info(RunInfo(data_root="/nowhere/data"))
    with pytest.raises(
        UserError,
        match=r"'tiny' is neither .* was trained with the data root '/nowhere/data', which",
    ):
        training.load(copy, "cpu", None)
    assert training.load(copy, "cpu", folder)


def test_a_relative_data_root_is_inside_the_run_folder(run, tmp_path, monkeypatch):
    copied = Run(Path(shutil.copytree(run.path, tmp_path / "copy")), run.recipe)
    copied.update_info(RunInfo(data_root="."))
    monkeypatch.chdir("/")
    with data_root_of(copied, None) as root:
        assert root == copied.path
