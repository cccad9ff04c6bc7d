"""What tests of sweeps need: sweeps without processes, and the command in this process."""

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
from cudt.sweep import conduct, definition
from cudt.sweep.conduct import Options
from cudt.sweep.storage import open_storage
from cudt.sweep.workers import Done, Failed, Message
from cudt.utils.errors import UserError
from tests.conftest import quiet
from tests.sweep.searches import write_search

Command = Callable[..., tuple[int, str, str]]


class InThisProcess:
    """Workers that are none: a cell is done when it is started."""

    def __init__(self, environments: list[Any], logs: Path, do: str) -> None:
        self._do = pkgutil.resolve_name(do)
        self._told: list[tuple[Any, float, Message]] = []

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @property
    def has_room(self) -> bool:
        return not self._told

    @property
    def is_busy(self) -> bool:
        return bool(self._told)

    def start(self, key: Any, job: Any) -> None:
        try:
            message: Message = Done(self._do(job, quiet()))
        except Exception as error:
            message = Failed(str(error))
        self._told.append((key, 0.5, message))

    def wait(self, timeout: float) -> Iterator[tuple[Any, float, Message]]:
        yield self._told.pop()

    def stop(self) -> None:
        pass


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials in memory, for as long as a test lasts, and files that nobody waits for: what is slow about a sweep."""
    storages: dict[str | None, Any] = {}
    monkeypatch.setattr(conduct, "open_storage", lambda url: storages.setdefault(url, open_storage(None)))
    monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "Workers", InThisProcess)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """`cudt` in this process, in an empty folder: exit code, standard output and error; `do` replaces training."""
    monkeypatch.chdir(tmp_path)
    for name in ("CUDT_DATA_ROOT", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path, do: str | None = None) -> tuple[int, str, str]:
        planted = f"tests.sweep.planted:{do}" if do else Options.do
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["cudt", *map(str, arguments)])
            patch.setattr(conduct, "Options", partial(Options, do=planted))
            with pytest.raises(SystemExit) as stop:
                cli.main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., list[str]]:
    """The lines that a search file is refused with; none where it is sound."""

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
