"""Temporaries of dead writers are deleted, those of living ones and all other files are not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from cudt.utils import process_identity, temporaries
from cudt.utils.files import replacing, write_text


def die_amid(path: Path, *, folder: bool = False) -> Path:
    """The temporary of a writer that is killed."""

    def write() -> None:
        with temporaries.folder_next_to(path) if folder else replacing(path) as temporary:
            (temporary / "a" if folder else temporary).write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    (left,) = path.parent.glob(f".{path.name[:20]}*")
    return left


@pytest.mark.parametrize("folder", [False, True])
def test_the_next_writer_in_the_folder_deletes_what_a_killed_one_left(tmp_path, folder):
    left = die_amid(tmp_path / "a.csv", folder=folder)
    assert temporaries.abandoned(tmp_path) == [left]
    write_text(tmp_path / "b.csv", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["b.csv"]


def test_a_living_writer_keeps_its_own(tmp_path):
    with replacing(tmp_path / "a") as one, temporaries.folder_next_to(tmp_path / "b") as other:
        write_text(tmp_path / "c", "")
        one.write_text("whole")
        assert other.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]


def test_a_number_of_a_process_that_is_used_again_is_another_process(tmp_path):
    with temporaries.folder_next_to(tmp_path / "a") as mine:
        start = mine.name.split("-")[2]
        earlier = mine.rename(tmp_path / mine.name.replace(f"-{start}-", f"-{int(start) - 1000}-"))
        assert temporaries.abandoned(tmp_path) == [earlier]


def test_of_another_machine_they_are_deleted_after_a_day(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(temporaries, "machine", lambda: "another")
        left = die_amid(tmp_path / "a")
    temporaries.delete_abandoned(tmp_path)
    assert left.exists()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_500)
    temporaries.delete_abandoned(tmp_path)
    assert not left.exists()


def test_other_hidden_files_are_kept_and_folders_below_are_looked_at_on_request(tmp_path):
    below = tmp_path / "below"
    below.mkdir()
    kept = [tmp_path / name for name in (".lock", ".a.markdown", ".a.csv.abcd1234", "a.0123abcd-1-1-abcd1234")]
    for path in kept:
        path.touch()
    left = die_amid(below / "a")
    temporaries.delete_abandoned(tmp_path)
    assert left.exists()
    temporaries.delete_abandoned(tmp_path, below=True)
    assert not left.exists()
    assert all(path.exists() for path in kept)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    left = die_amid(tmp_path / "a", folder=True)
    (left / "a").unlink()
    left.rmdir()
    left.symlink_to(tmp_path / "elsewhere")
    temporaries.delete_abandoned(tmp_path, below=True)
    assert not left.is_symlink()
    assert (tmp_path / "elsewhere" / "file").exists()


def test_the_longest_name_can_be_written(tmp_path):
    for name in ("a" * 255, "ä" * 127):
        write_text(tmp_path / name, "whole")
        left = die_amid(tmp_path / name)
        write_text(tmp_path / name, "again")
        assert not left.exists()


def test_a_folder_that_does_not_exist_has_none(tmp_path):
    assert temporaries.abandoned(tmp_path / "gone", below=True) == []


def test_a_process_of_another_container_is_another_machine():
    assert len(process_identity.machine().split(" ")) == 3
