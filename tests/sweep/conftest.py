"""Fixtures of the tests of sweeps: sweeps without worker processes, and the command in this
process."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cudt.cli import main as cli
from cudt.sweep import definition, run_sweep
from cudt.sweep.run_sweep import SweepOptions
from cudt.utils.errors import MACHINE_ERRORS, UserError
from cudt.utils.worker_processes import FAULT, Ended
from tests.sweep.searches import planted, write_search

Command = Callable[..., tuple[int, str, str]]


class InThisProcess:
    """Workers without processes: they work while the sweep waits for one of them to end."""

    def __init__(self, environments: list[Any], logs: Path, function: str, argument: Any) -> None:
        self._function, self._argument, self._logs = pkgutil.resolve_name(function), argument, logs
        self._started = [0]

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @property
    def n_running(self) -> int:
        return len(self._started)

    def start(self, worker: int) -> None:
        self._started.append(worker)

    def wait(self, timeout: float) -> Iterator[Ended]:
        worker = self._started.pop()
        try:
            code, fault = self._function(self._argument), None
        except MACHINE_ERRORS as error:
            code, fault = FAULT, str(error)
        yield Ended(worker, os.getpid(), code, self._logs, fault)

    def stop(self) -> None:
        self._started.clear()


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudt.sweep.watch.Processes", InThisProcess)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """`cudt` in this process and an empty folder: exit code, output, errors; `function` replaces
    training."""
    monkeypatch.chdir(tmp_path)
    for name in ("CUDT_DATA_ROOT", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path, function: str | None = None) -> tuple[int, str, str]:
        cell_function = planted(function) if function else SweepOptions.cell_function
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["cudt", *map(str, arguments)])
            patch.setattr(
                run_sweep, "SweepOptions", partial(SweepOptions, cell_function=cell_function)
            )
            with pytest.raises(SystemExit) as stop:
                cli.main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def errors_of(tmp_path: Path) -> Callable[..., list[str]]:
    """The errors of a search file, one per line; none if it is valid."""

    def lines(**changes: Any) -> list[str]:
        try:
            definition.load(str(write_search(tmp_path, **{"fixed": None, **changes})))
        except UserError as error:
            first, *more = str(error).splitlines()
            if more:
                assert first == f"search mine: {len(more)} errors"
            return [line.strip() for line in more] or [first.removeprefix("search mine: ")]
        return []

    return lines
