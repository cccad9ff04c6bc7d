"""What the command does when its workers end; the workers here are pretended."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy.exc import OperationalError

from cudt.sweep import recovery, reserve, watch
from cudt.sweep.display import SweepDisplay
from cudt.sweep.storage import open_storage, own_storage
from cudt.sweep.watch import Crew, run_workers
from cudt.utils.errors import MachineFaultError
from cudt.utils.worker_processes import FAULT, Ended
from tests.sweep.test_worker import Source


class OneFault:
    """A worker that has ended with a fault of the machine, and still holds its trial."""

    n_running = 1

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> OneFault:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float) -> Iterator[Ended]:
        if self.n_running:
            self.n_running = 0
            yield Ended(0, os.getpid(), FAULT, Path("log"), "no space left")

    def stop(self) -> None:
        pass


def test_the_trial_of_a_worker_with_a_fault_is_given_back_when_the_server_answers_again(tmp_path, monkeypatch):
    """Before: it stayed running, and whoever found it counted a death."""
    source = Source(open_storage(own_storage(tmp_path)), lambda word, report: None, "a", "b")
    assert source.queue.next() is not None
    give_back, asked = recovery.give_back_of_process, []

    def away_at_first(*arguments: Any, **more: Any) -> bool:
        asked.append("once")
        if len(asked) < 3:
            raise OperationalError("SELECT", {}, ConnectionError("the server closed the connection"))
        return give_back(*arguments, **more)

    monkeypatch.setattr(recovery, "give_back_of_process", away_at_first)
    monkeypatch.setattr(watch, "Processes", OneFault)
    seen: list[set[str]] = []
    with pytest.raises(MachineFaultError, match="no space left"):
        run_workers(
            Crew([{}], tmp_path, "", None),
            [source],
            SweepDisplay(Console(file=StringIO())),
            lambda ended, n_failed: seen.append(ended),
        )
    first, _ = source.queue.trials()
    assert (first.state, first.facts, len(asked)) == ("waiting", {"seconds": 0.0, "deaths": 0}, 3)
    # So that the tables are written.
    assert seen[-1] == {source.queue.name}


def test_the_trial_of_a_worker_with_a_fault_is_given_back_on_a_full_disk(tmp_path, monkeypatch):
    """Before: SQLite had no space to record it, and the next command counted a death."""
    source = Source(open_storage(own_storage(tmp_path)), lambda word, report: None, "a")
    assert source.queue.next() is not None
    give_back, space = recovery.give_back_of_process, tmp_path / "study.db.reserve"

    def needs_space(*arguments: Any, **more: Any) -> bool:
        if space.exists():
            raise OperationalError("UPDATE", {}, sqlite3.OperationalError("database or disk is full"))
        return give_back(*arguments, **more)

    monkeypatch.setattr(recovery, "give_back_of_process", needs_space)
    monkeypatch.setattr(watch, "Processes", OneFault)
    crew, display = Crew([{}], tmp_path, "", None), SweepDisplay(Console(file=StringIO()))
    with pytest.raises(MachineFaultError):
        run_workers(crew, [source], display, lambda ended, n_failed: None)
    (trial,) = source.queue.trials()
    assert (trial.state, trial.facts["deaths"], space.exists()) == ("waiting", 0, False)


def test_the_space_is_kept_while_workers_run(tmp_path):
    storage, space = open_storage(own_storage(tmp_path)), tmp_path / "study.db.reserve"
    with reserve.reserved(storage):
        assert space.stat().st_size > 100_000
    assert not space.exists()
