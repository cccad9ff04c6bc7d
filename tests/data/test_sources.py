from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cudt.data.records import read_files
from cudt.data.sources import explaining, reading, reason_of
from cudt.utils.errors import UserError
from tests.tasks import TEXT, parquet


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "x.bin"
    path.write_bytes(b"content")
    return path


@pytest.mark.parametrize(
    "error",
    [
        TypeError("wrong"),
        ValueError("two\n lines"),
        # FFmpeg and Pillow say so of damaged files.
        OSError(errno.EIO, "Input/output error"),
        MemoryError(),
    ],
)
def test_an_error_about_a_file_that_can_be_read_is_the_files(error, file):
    with pytest.raises(UserError) as caught, reading(file, "cannot be read", "download it again"):
        raise error
    assert str(caught.value) == f"{file}: cannot be read ({reason_of(error)}); download it again"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_fault_of_the_machine_goes_on_with_the_path_of_the_file(number, file, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(OSError, match=os.strerror(number)) as caught, reading(file, "cannot be read", "check it"):
        raise OSError(number, os.strerror(number))
    assert caught.value.filename == str(file)


@pytest.mark.parametrize(
    ("name", "content"), [("x.csv", b"text,label\na,1\n"), ("x.parquet", parquet(text=["a"], label=[1]))]
)
def test_a_table_on_a_lost_disk_is_a_fault_of_the_machine(name, content, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(content)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "open", fail)
    monkeypatch.setattr("pyarrow.parquet.read_metadata", fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        read_files([tmp_path / name], TEXT)
    assert caught.value.filename == str(tmp_path / name)


def test_memory_that_a_large_file_needs_is_a_fault_of_the_machine(file, monkeypatch):
    monkeypatch.setattr("cudt.data.sources._SMALL", 3)
    with pytest.raises(MemoryError), reading(file, "cannot be read", "check it"):
        raise MemoryError


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), UserError("ours")])
def test_interruptions_and_our_own_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as caught, explaining("a problem", "advice"):
        raise error
    assert caught.value is error


def test_reasons_are_short_and_never_empty():
    assert reason_of(ValueError("a  b\nc")) == "a b c"
    assert reason_of(ValueError("x" * 10_000 + "y" * 100)) == "x" * 100 + " … " + "y" * 100
    assert reason_of(ValueError()) == "ValueError"
