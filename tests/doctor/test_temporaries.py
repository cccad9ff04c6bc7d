from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from cudt.doctor import temporaries as check
from cudt.utils import temporaries
from tests.doctor.conftest import bad, scope


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "outputs" / "recipe" / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    return folder


def of_a_dead_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 2**22 + 1)
        return temporaries.new_file(path)


def test_temporaries_of_dead_processes_are_deleted_and_those_of_living_ones_stay(run, tmp_path, monkeypatch):
    dead = of_a_dead_process(run / "ood.csv", monkeypatch)
    cached = tmp_path / "cache" / "frames" / "a.frames"
    cached.parent.mkdir(parents=True)
    also_dead = of_a_dead_process(cached, monkeypatch)
    alive = temporaries.new_file(run / "ood.csv")
    fixes = bad(check.CHECK, scope(tmp_path / "outputs"))
    assert [one.fix() for one in fixes if one.fix] == ["deleted 1 temporary file", "deleted 1 temporary file"]
    assert (dead.exists(), also_dead.exists(), alive.exists()) == (False, False, True)
    assert bad(check.CHECK, scope(tmp_path / "outputs")) == []


def test_those_of_earlier_versions_are_deleted_if_no_command_uses_the_run(run, tmp_path):
    ours = [run / ".ood.csv.a8x_3kq1", run / "checkpoints" / ".step-12.safetensors.abcdefgh", run / ".saving.abcd_fgh"]
    others = [run / ".notes.txt.abcdefgh", run / ".lock", run / ".ood.csv.ABC", run / "ood.csv.abcdefgh"]
    for path in ours[:2] + others:
        path.write_text("")
    ours[2].mkdir()
    (ours[2] / "model").write_text("")
    with FileLock(run / ".lock"):
        assert bad(check.CHECK, scope(tmp_path / "outputs")) == []
    (one,) = bad(check.CHECK, scope(tmp_path / "outputs"))
    assert one.fix is not None
    assert one.fix() == "deleted 3 temporary files"
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in others)
    assert bad(check.CHECK, scope(tmp_path / "outputs")) == []
