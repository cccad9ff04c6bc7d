from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from cudt.utils.errors import UserError
from cudt.utils.files import check_data_root, write_atomically, write_text


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_file_is_whole_and_as_readable_as_any_other(tmp_path):
    write_atomically(tmp_path / "new" / "a.txt", lambda file: file.write(b"all of it"))
    (tmp_path / "new" / "plain.txt").write_text("")
    assert (tmp_path / "new" / "a.txt").read_bytes() == b"all of it"
    assert files(tmp_path / "new") == ["a.txt", "plain.txt"]
    modes = {
        stat.S_IMODE((tmp_path / "new" / name).stat().st_mode) for name in files(tmp_path / "new")
    }
    assert len(modes) == 1


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write(file):
        file.write(b"half of the ne")
        raise error

    with pytest.raises(error):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert files(tmp_path) == ["a.txt"]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    seen = []

    def write(file):
        file.write(b"new")
        file.flush()
        seen.append(path.read_text())

    write_atomically(path, write)
    assert seen == ["old"]
    assert path.read_text() == "new"


def test_a_data_root_is_an_existing_folder_or_none(tmp_path):
    assert check_data_root(tmp_path) == tmp_path
    assert check_data_root(None) is None
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "gone", tmp_path / "file"):
        with pytest.raises(UserError, match=f"data root '{wrong}' does not exist"):
            check_data_root(wrong)


# ---------------------------------------------------------------- power failures


def test_the_new_name_is_on_disk_before_anything_else_is_written(tmp_path, monkeypatch):
    done: list[str] = []
    sync, rename = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def renamed(source: Path, target: Path) -> Path:
        done.append("rename")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_text(tmp_path / "a.txt", "a")
    assert done == ["file", "rename", "folder"]


@pytest.mark.parametrize(
    ("number", "is_error"), [(errno.EINVAL, False), (errno.EACCES, False), (errno.EIO, True)]
)
def test_a_folder_that_cannot_be_synced_is_no_error_but_a_broken_disk_is(
    tmp_path, monkeypatch, number, is_error
):
    sync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"a\.txt") if is_error else contextlib.nullcontext():
        write_text(tmp_path / "a.txt", "a")
    assert (tmp_path / "a.txt").read_text() == "a"
