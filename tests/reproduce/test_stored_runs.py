"""scripts/stored_runs.py: the tables of runs without their weights, which a reproduction takes for finished runs."""

from __future__ import annotations

import importlib
import shutil
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from cudt.reproduce import plan
from cudt.reproduce.stored import ReproduceOptions
from cudt.runs import checksums
from cudt.runs.find import open_run
from cudt.runs.info import RunInfo
from tests.reproduce.scales import listed, scale_of, write_scale, write_search
from tests.test_dinov2_weights import SCRIPTS


@pytest.fixture
def stored_runs(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("stored_runs")


@pytest.fixture
def reproduced(command, no_processes, tmp_path) -> Path:
    """The folder of a reproduction of two runs."""
    code, _, errors = reproduce(command, tmp_path, "out")
    assert (code, errors) == (0, "")
    return tmp_path / "out"


def reproduce(command, folder: Path, out: str) -> tuple[int, str, str]:
    return command("reproduce", "--scale", write_scale(folder), "--device", "cpu", "--out", out)


def contents(folder: Path) -> dict[str, bytes]:
    """The tables of runs."""
    files = folder.glob("reviews-ut/*/*.csv")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_reproduction_of_restored_runs_trains_and_evaluates_nothing(command, stored_runs, reproduced, tmp_path):
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    written = stored_runs.store(reproduced, store)
    assert [path.relative_to(store).as_posix().rpartition("-")[0] for path in written] == [
        "reviews-ut/constrained",
        "reviews-ut/erm",
    ]
    assert stored_runs.restore(elsewhere, store) == 2
    assert contents(elsewhere) == contents(reproduced)
    assert not list(elsewhere.rglob("*.safetensors"))
    for run in elsewhere.glob("reviews-ut/*"):
        assert str(tmp_path) not in (run / "run.json").read_text()
        assert not checksums.damaged_files(run)
    # The plan knows it before anything is begun in that folder.
    every = scale_of(tmp_path, listed(write_search(tmp_path), evaluate="all"))
    made = plan.make(every, ReproduceOptions(elsewhere, "cpu"))
    assert [(row.left, row.evaluations_left) for row in made.rows] == [(0, 0)]
    code, printed, errors = reproduce(command, tmp_path, "elsewhere")
    assert (code, errors) == (0, "")
    assert "done           pair · reviews-ut: 2 runs, 2 evaluated" in printed
    assert not list(elsewhere.rglob("*.safetensors"))
    assert contents(elsewhere) == contents(reproduced)
    assert (elsewhere / "report" / "table.csv").read_bytes() == (reproduced / "report" / "table.csv").read_bytes()


def test_the_same_runs_give_the_same_bytes(stored_runs, reproduced, tmp_path):
    (first,) = [path.read_bytes() for path in stored_runs.store(reproduced, tmp_path / "a") if "erm" in path.name]
    copy = tmp_path / "copy"
    shutil.copytree(reproduced, copy)
    (second,) = [path.read_bytes() for path in stored_runs.store(copy, tmp_path / "b") if "erm" in path.name]
    assert first == second


def test_runs_that_are_there_are_kept(stored_runs, reproduced, tmp_path):
    stored_runs.store(reproduced, tmp_path / "store")
    mine = next(reproduced.glob("reviews-ut/erm-*")) / "ood.csv"
    mine.write_text("mine")
    shutil.rmtree(next(reproduced.glob("reviews-ut/constrained-*")))
    assert stored_runs.restore(reproduced, tmp_path / "store") == 1
    assert mine.read_text() == "mine"
    assert next(reproduced.glob("reviews-ut/constrained-*/ood.csv")).is_file()


@pytest.mark.parametrize("changes", [RunInfo(status="interrupted"), RunInfo(evaluated={})], ids=["training", "tests"])
def test_runs_that_need_their_weights_are_left_out(changes, stored_runs, reproduced, tmp_path):
    open_run(next(reproduced.glob("reviews-ut/erm-*"))).update_info(changes)
    (only,) = stored_runs.store(reproduced, tmp_path / "store")
    with tarfile.open(only) as archive:
        assert all("/constrained-" in name for name in archive.getnames())
