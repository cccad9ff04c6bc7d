"""Commands called in this process."""

from __future__ import annotations

import shutil
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


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Time and bytes of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
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
