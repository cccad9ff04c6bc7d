"""A disk that is full at some writes of train and eval-ood.

The command ends with one line that says which file, and leaves no temporary file; with space again,
the same command ends with the files of a command that never met a full disk, bit for bit.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import safetensors.torch
from safetensors import SafetensorError

from cudt.cli import main as cli
from cudt.runs.run import RunFolder, find_runs
from tests.use.conftest import SMALL

SETTINGS = [*SMALL, "--set", "training.epochs=1", "--set", "training.checkpoint_every=2"]
TRAIN = ["train", "--recipe", "reviews-ut", *SETTINGS, "--device", "cpu", "--out", "out"]
#: What differs between two commands that do the same.
_OF_THE_MOMENT = ("begun", "ended", "command", "reason", "sha256")
CommandLine = Callable[..., tuple[int, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A command in this process: exit code and standard error."""
    for name in ("CUDT_DATA_ROOT", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["cudt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), capsys.readouterr().err

    return run


class Disk:
    """Counts writes, and has no space from the `full_at`-th on."""

    def __init__(self) -> None:
        self.writes, self.full_at = 0, 0

    def limit(self, call: Callable[..., Any], error: Callable[[], Exception]) -> Callable[..., Any]:
        def limited(*arguments: Any, **more: Any) -> Any:
            self.writes += 1
            if self.full_at and self.writes >= self.full_at:
                raise error()
            return call(*arguments, **more)

        return limited

    def begin(self, full_at: int = 0) -> None:
        self.writes, self.full_at = 0, full_at


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _no_space_in_rust() -> SafetensorError:
    return SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Every call with which cudt writes files."""
    made = Disk()
    for owner, name in (
        (tempfile, "mkstemp"),
        (os, "fsync"),
        (Path, "replace"),
        (pq.ParquetWriter, "write_table"),
    ):
        monkeypatch.setattr(owner, name, made.limit(getattr(owner, name), _no_space))
    save = made.limit(safetensors.torch.save_file, _no_space_in_rust)
    monkeypatch.setattr("cudt.training.checkpoint.save_file", save)
    return made


def contents(folder: Path) -> dict[str, Any]:
    """The files below a folder, without what is of the moment; checksums are checked instead of
    compared."""
    left_out = (".lock",)
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or name.endswith(left_out):
            continue
        if path.name == "run.json":
            values = json.loads(path.read_text())
            found[name] = {key: value for key, value in values.items() if key not in _OF_THE_MOMENT}
        else:
            found[name] = path.read_bytes()
    for run in find_runs([folder]):
        for name in RunFolder(run).info().files:
            RunFolder(run).check(name)
    return found


def temporaries(folder: Path) -> list[str]:
    return [
        path.name
        for path in folder.rglob(".*")
        if path.is_file() and not path.name.endswith(".lock")
    ]


def is_one_line(error: str) -> bool:
    lines = [line for line in error.splitlines() if not line.startswith("warning: ")]
    return len(lines) == 1 and "No space left on device" in error


def some(total: int) -> list[int]:
    """The first writes, the last ones, and some between."""
    return sorted({1, total // 4, total // 2, 3 * total // 4, total})


# ---------------------------------------------------------------- every command, at some of its
# writes


def check(
    disk: Disk, command: CommandLine, arguments: list[Any], fresh: Callable[[], Path], writes: Any
) -> None:
    """Run a command on disks that are full at some of its writes, and again with space."""
    out = fresh()
    disk.begin()
    assert command(*arguments)[0] == 0
    total, expected = disk.writes, contents(out)
    assert total > 3
    for full_at in writes(total):
        out = fresh()
        disk.begin(full_at)
        code, error = command(*arguments)
        assert (code in (1, 2), is_one_line(error)) == (True, True), (
            f"write {full_at} of {total}: {error}"
        )
        assert temporaries(out) == []
        disk.begin()
        code, error = command(*arguments)
        assert code == 0, f"after write {full_at} of {total}: {error}"
        assert contents(out) == expected, f"after write {full_at} of {total}"


def emptied() -> Path:
    shutil.rmtree("out", ignore_errors=True)
    Path("out").mkdir()
    return Path("out")


def test_training_stops_at_a_full_disk_and_resumes(disk, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(disk, command, TRAIN, emptied, some)


def test_an_evaluation_stops_at_a_full_disk_and_is_repeated(
    disk, command, trained_run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def fresh() -> Path:
        shutil.rmtree("copy", ignore_errors=True)
        return Path(shutil.copytree(trained_run.path, "copy"))

    check(disk, command, ["eval-ood", "copy", "--gammas", "0,1"], fresh, some)
