"""Commands called in this process and as processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cudt.cli import main as cli
from cudt.runs.run import Run
from tests.conftest import TINY

#: The command-line form of TINY.
SMALL = [word for setting in TINY for word in ("--set", setting)]
CommandLine = Callable[..., tuple[int, str, str]]


def environment() -> dict[str, str]:
    """One thread, no CUDA device, no colours, and nothing of the user's own settings."""
    left_out = ("CUDT_DATA_ROOT", "COLUMNS", "FORCE_COLOR", "CLICOLOR_FORCE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TERM": "dumb",
    }


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120
    )


def cudt(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "cudt", *map(str, arguments), cwd=cwd)


def modules_imported_by(*arguments: str, cwd: Path) -> set[str]:
    """The top-level packages that a command imports."""
    trace = python("-X", "importtime", "-m", "cudt", *arguments, cwd=cwd).stderr
    return {line.split("|")[-1].strip().split(".")[0] for line in trace.splitlines()}


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Time and bytes of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> CommandLine:
    """A command in this process, in an empty folder: exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    for name in ("CUDT_DATA_ROOT", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cudt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def copy(trained_run: Run, tmp_path: Path) -> Run:
    """A copy of the trained run in the folder `copy`."""
    return Run(Path(shutil.copytree(trained_run.path, tmp_path / "copy")), trained_run.recipe)
