from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections import namedtuple
from pathlib import Path

import pytest

from cudt.doctor import folders
from tests.doctor.conftest import bad, found, scope

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _space(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, 2**40))


def test_good_folders_are_left_as_they_are(tmp_path):
    assert not bad(folders.CHECK, scope(tmp_path, tmp_path / "not" / "yet"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("free", "severity"), [(2**30, "warning"), (2**20, "problem")])
def test_a_full_disk_is_noticed(tmp_path, monkeypatch, free, severity):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, free))
    assert {one.severity for one in found(folders.CHECK, scope(tmp_path))} == {severity}


def test_a_file_where_a_folder_is_expected_and_a_folder_that_refuses_files_are_problems(tmp_path, monkeypatch):
    (tmp_path / "outputs").write_text("")
    assert "is a file, not a folder" in bad(folders.CHECK, scope(tmp_path / "outputs" / "demo"))[0].title

    def refuse(**options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert bad(folders.CHECK, scope(tmp_path))[0].title == f"runs: {tmp_path} cannot be written to"


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    assert "has no locks" in bad(folders.CHECK, scope(tmp_path))[0].title

    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "has no locks" in bad(folders.CHECK, scope(tmp_path))[0].title


def test_a_file_system_without_hard_links_is_a_note(tmp_path, monkeypatch):
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert [one.title for one in found(folders.CHECK, scope(tmp_path)) if one.severity == "note"] == [
        f"{tmp_path}: the file system has no hard links, so each checkpoint is copied"
    ]


@pytest.mark.parametrize(("by", "word"), [(-60, "ahead"), (60, "behind")])
def test_a_file_servers_clock_that_is_off_is_a_warning(tmp_path, monkeypatch, by, word):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + by)
    assert f"{tmp_path}: the clock of its file server is 60 s {word}" == bad(folders.CHECK, scope(tmp_path))[0].title
