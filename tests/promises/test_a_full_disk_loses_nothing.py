"""A disk that is full at some writes of train and eval-ood: the command ends with one line that says
so and leaves no temporary file; with space again, the same command ends with the files of a command
that never met a full disk, bit for bit.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import safetensors.torch
from safetensors import SafetensorError

from cudt.cli import main as cli
from cudt.runs.run import RunFolder, find_runs
from tests.conftest import TINY

SETTINGS = [word for one in TINY for word in ("--set", one)]
FEW = ["--set", "training.epochs=1", "--set", "training.checkpoint_every=2"]
TRAIN = ["train", "--recipe", "reviews-ut", *SETTINGS, *FEW, "--device", "cpu", "--out", "out"]
EVALUATE = ["eval-ood", "out", "--gammas", "0,1", "--device", "cpu"]
#: What differs between two commands that do the same.
OF_THE_MOMENT = ("begun", "ended", "seconds", "command", "reason", "sha256", "files")


class Disk:
    """Counts writes, and has no space from the `full_at`-th on."""

    writes, full_at = 0, 0

    def limit(self, call: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def limited(*arguments: Any, **more: Any) -> Any:
            self.writes += 1
            if 0 < self.full_at <= self.writes:
                raise error
            return call(*arguments, **more)

        return limited


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    """Every call with which cudt writes files, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    made, full = Disk(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for owner, name in ((os, "fsync"), (Path, "replace"), (pq.ParquetWriter, "write_table")):
        monkeypatch.setattr(owner, name, made.limit(getattr(owner, name), full))
    in_rust = SafetensorError("I/O error: No space left on device (os error 28)")
    save = made.limit(safetensors.torch.save_file, in_rust)
    monkeypatch.setattr("cudt.training.checkpoint.save_file", save)
    return made


def contents(folder: Path) -> dict[str, Any]:
    """The files below a folder, without what is of the moment."""
    (run,) = find_runs([folder])
    for name in RunFolder(run).info().files:
        RunFolder(run).check(name)
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.name == "run.json":
            values = json.loads(path.read_text())
            found[path.name] = {key: values[key] for key in values if key not in OF_THE_MOMENT}
        elif path.is_file() and path.name != ".lock":
            found[path.name] = path.read_bytes()
    return found


@pytest.mark.parametrize("arguments", [TRAIN, EVALUATE], ids=["train", "eval-ood"])
def test_it_stops_at_a_full_disk_and_a_repeat_goes_on(
    disk, arguments, trained_run, monkeypatch, capsys
):
    def command(full_at: int) -> tuple[int, str]:
        disk.writes, disk.full_at = 0, full_at
        monkeypatch.setattr("sys.argv", ["cudt", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), capsys.readouterr().err

    def fresh() -> None:
        shutil.rmtree("out", ignore_errors=True)
        if arguments == EVALUATE:
            shutil.copytree(trained_run.path, "out")

    fresh()
    assert command(0)[0] == 0
    total, expected = disk.writes, contents(Path("out"))
    for full_at in sorted({1, total // 4, total // 2, 3 * total // 4, total}):
        fresh()
        code, error = command(full_at)
        assert code in (1, 2), full_at
        assert error.count("No space left on device") == error.count("\n") == 1, error
        assert not [path for path in Path("out").rglob(".*.tmp") if path.is_file()]
        assert command(0)[0] == 0, full_at
        assert contents(Path("out")) == expected, full_at
