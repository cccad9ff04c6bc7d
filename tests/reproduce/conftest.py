"""Fixtures of the tests of `cudt reproduce`: the command in this process, without worker processes."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudt.reproduce import evaluation
from cudt.sweep import startup
from cudt.utils.workers import Done, Failed, Message
from tests.sweep.conftest import InThisProcess, command, no_disk

__all__ = ["command", "no_disk"]


class PoolInThisProcess:
    """A pool without processes: a job is done when `start` returns."""

    def __init__(self, environments: list[Any], logs: Path, function: str) -> None:
        self._function = pkgutil.resolve_name(function)
        self._messages: list[tuple[Any, float, Message]] = []

    def __enter__(self) -> PoolInThisProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @property
    def has_room(self) -> bool:
        return not self._messages

    @property
    def is_busy(self) -> bool:
        return bool(self._messages)

    def start(self, key: Any, job: Any) -> None:
        try:
            message: Message = Done(self._function(job, lambda value: None))
        except Exception as error:
            message = Failed(str(error))
        self._messages.append((key, 0.5, message))

    def wait(self, timeout: float) -> Iterator[tuple[Any, float, Message]]:
        yield self._messages.pop()

    def stop(self) -> None:
        pass


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run cells and evaluations in this process, and do not time the imports in another."""
    monkeypatch.setattr(startup, "worker_seconds", lambda: 2.5)
    monkeypatch.setattr("cudt.sweep.watch.Processes", InThisProcess)
    monkeypatch.setattr(evaluation, "Workers", PoolInThisProcess)
