from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudt.runs.find import find_runs
from cudt.utils import temporaries
from cudt.utils.walk import entries_below, files_below

DEPTH = 1300


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder in which more folders are nested than Python can call functions."""
    top = tmp_path / "outputs"
    folder = top.joinpath(*["a"] * DEPTH)
    for part in reversed([folder, *folder.parents][: DEPTH + 1]):
        part.mkdir()
    yield top
    # pytest's own clean-up would be a RecursionError.
    for part in [folder, *folder.parents][: DEPTH + 1]:
        (part / "run.json").unlink(missing_ok=True)
        part.rmdir()


def test_folders_may_be_nested_deeper_than_python_recurses(deep):
    innermost = deep.joinpath(*["a"] * DEPTH)
    (innermost / "run.json").touch()
    assert files_below(deep, ["run.json"]) == [innermost / "run.json"]
    assert find_runs([deep]) == [innermost]
    assert temporaries.abandoned(deep, below=True) == []


def test_files_are_found_as_rglob_finds_them(tmp_path):
    for name in ("b/run.json", "a/c/run.json", ".d/run.json", "a/other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert files_below(tmp_path, ["run.json"]) == sorted(tmp_path.rglob("run.json"))
    assert {Path(entry.path) for entry in entries_below(tmp_path)} == {*tmp_path.rglob("*")}
    assert files_below(tmp_path / "gone", ["run.json"]) == []


def test_a_folder_that_is_deleted_meanwhile_is_empty(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for entry in entries_below(tmp_path):
        assert entry.name == "a"
        shutil.rmtree(tmp_path / "a")
