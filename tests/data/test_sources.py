from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cudt.data.sources import explaining, reading, reason_of
from cudt.utils.errors import UserError


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


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), UserError("ours")])
def test_interruptions_and_our_own_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as caught, explaining("a problem", "advice"):
        raise error
    assert caught.value is error


def test_reasons_are_short_and_never_empty():
    assert reason_of(ValueError("a  b\nc")) == "a b c"
    assert reason_of(ValueError("x" * 10_000 + "y" * 100)) == "x" * 100 + " … " + "y" * 100
    assert reason_of(ValueError()) == "ValueError"
