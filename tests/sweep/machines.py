"""Pretended machines: workers of a sweep in processes of their own, each with its host name, home
and folder of runs.

They share nothing but the storage, and a file in which cells note when they begin and end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd

from cudt.sweep import arm_worker, holder, results, stored
from cudt.sweep.arm_worker import WorkerJob
from cudt.sweep.definition import Sweep
from cudt.sweep.storage import open_storage
from tests.processes import ending, in_child
from tests.sweep.planted import NOTES, PACE
from tests.sweep.searches import planted


@dataclass(frozen=True)
class Note:
    word: str
    machine: str
    cell: str
    time: float


@dataclass
class Machines:
    """The machines of a test, and the sweep that they run."""

    sweep: Sweep
    url: str
    folder: Path
    function: str
    pace: float
    processes: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin the sweep, without a worker."""
        assert ending(in_child(self._begin)) == 0

    def join(self, name: str) -> None:
        """Start a worker on a machine of this name."""
        self.processes[name] = in_child(partial(self._work, name))

    def kill(self, name: str) -> None:
        """Kill a machine's worker in the middle of a cell, without a word to anyone."""
        until(lambda: self._is_amid_a_cell(name))
        os.kill(self.processes[name], signal.SIGKILL)
        assert ending(self.processes.pop(name)) == -signal.SIGKILL
        assert self._is_amid_a_cell(name)

    def wait(self) -> dict[str, int]:
        """The exit codes of the machines that are left."""
        return {name: ending(self.processes.pop(name)) for name in list(self.processes)}

    def notes(self, only: str = "") -> list[Note]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        fields = [line.split("\t") for line in lines]
        found = [Note(word, machine, cell, float(moment)) for word, machine, cell, moment in fields]
        return [one for one in found if only in ("", one.word)]

    def table(self) -> pd.DataFrame:
        """The sweep's trials, as its storage knows them."""
        storage = open_storage(self.url)
        try:
            return results.wide(self.sweep, stored.open_studies(self.sweep, storage))
        finally:
            storage.engine.dispose()  # type: ignore[attr-defined]

    @property
    def _notes(self) -> Path:
        return self.folder / "notes"

    def _is_amid_a_cell(self, name: str) -> bool:
        mine = [one.word for one in self.notes() if one.machine == name]
        return mine[-1:] == ["begins"]

    def _begin(self) -> None:
        studies = stored.open_studies(self.sweep, open_storage(self.url))
        stored.begin(self.sweep, studies, fail_fast=False, retry_failed=False)

    def _work(self, name: str) -> None:
        # More than `in_child` allows: the machine may be busy with other tests.
        signal.alarm(300)
        # A collection would go through, and copy, all that pytest has in memory, after every cell.
        gc.freeze()
        home = self.folder / name
        home.mkdir()
        os.chdir(home)
        os.environ |= {"HOME": str(home), NOTES: str(self._notes), PACE: str(self.pace)}
        socket.gethostname = lambda: name
        holder.machine.cache_clear()
        first = stored.first_study(self.sweep)
        try:
            os._exit(
                arm_worker.main(
                    WorkerJob(self.url, first, home / "out", "cpu", None, self.function)
                )
            )
        except Exception:
            # pytest shows what was printed if the test fails.
            traceback.print_exc()
            raise


@contextmanager
def machines(
    sweep: Sweep, url: str, folder: Path, function: str = "paced", pace: float = 0.25
) -> Iterator[Machines]:
    """Machines that run a sweep whose cells call a planted function; none outlives the block."""
    folder.mkdir(exist_ok=True)
    made = Machines(sweep, url, folder, planted(function), pace)
    try:
        yield made
    finally:
        for process in made.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            ending(process)


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
