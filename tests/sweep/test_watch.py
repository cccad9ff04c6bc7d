"""What the command does when its workers end; the workers here are pretended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy.exc import OperationalError

from cudt.sweep import recovery, watch
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
            yield Ended(0, os.getpid(), FAULT, Path("log"), "out of memory on the host")

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
    with pytest.raises(MachineFaultError, match="out of memory on the host"):
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
