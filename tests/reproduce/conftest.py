"""`cudt reproduce` in this process, without worker processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudt.cli import main as cli
from cudt.utils.errors import MACHINE_ERRORS
from cudt.utils.workers import FAULT, Ended


class InThisProcess:
    """A worker without a process: it works while the command waits for it to end."""

    def __init__(self, each: Any, logs: Path, function: Any, argument: Any) -> None:
        self.work, self.log, self.n_running = lambda: function(argument), logs / "log", 1

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def wait(self, timeout: float) -> list[Ended]:
        self.n_running = 0
        try:
            return [Ended(0, self.work(), self.log)]
        except MACHINE_ERRORS as error:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_text(str(error))
            return [Ended(0, FAULT, self.log)]


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch, no_figures: None) -> None:
    """Run and evaluate in this process, and draw no figures."""
    monkeypatch.setattr("cudt.sweep.command.Workers", InThisProcess)
    monkeypatch.setattr("signal.signal", lambda *_: None)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """`cudt` in this process and an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDT_DATA_ROOT", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cudt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run
