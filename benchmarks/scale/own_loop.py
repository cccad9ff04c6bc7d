"""Simulated workers that run cudt's own loop: its queue, its storage with holders, its polling."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.scale.worker_log import Log
from cudt.sweep.lease import Lease
from cudt.sweep.messages import CellProgress, CellResult
from cudt.sweep.queue import Key, Trial, TrialQueue
from cudt.sweep.source import Report

if TYPE_CHECKING:
    from benchmarks.scale.workers import Case
    from cudt.sweep.definition import Parameters

STUDY = "simulated"
#: Workers of a process connect one after the other: a thousand at once take longer than a connection may.
_OPENING = threading.Lock()


class _Cells(TrialQueue):
    """Cells 0, 1, 2 …"""

    count = 0

    def cells(self) -> Iterable[tuple[Key, Parameters]]:
        return [(number, {"cell": number}) for number in range(self.count)]

    def describe(self, trial: Trial) -> str:
        return str(trial.cell)


@dataclass(frozen=True)
class _Sleeping:
    """Trials that sleep."""

    queue: TrialQueue
    log: Log
    seconds: float

    def run(self, trial: Trial, report: Report, lease: Lease) -> CellResult:
        # The lease of a run of its own, as training takes it.
        lease.take(f"{self.queue.name}/{trial.cell}")
        self.log.work(self.seconds, lambda: report(CellProgress(1, 2, 0.5)))
        return CellResult(0.0, {"run": "", "updates": 0})

    def facts(self, trial: Trial) -> dict[str, Any]:
        return {}


def prepare() -> None:
    """Collect no garbage after trials in this process: each of its workers would collect that of all."""
    setattr(gc, "collect", lambda *generation: 0)  # noqa: B010  (mypy refuses the assignment)


class OwnWorker(Log):
    """A worker that runs `cudt.sweep.worker.work`."""

    def __init__(self, case: Case, url: str, number: int) -> None:
        super().__init__()
        self._case, self._url, self._number = case, url, number

    def run(self, go: Any) -> None:
        from cudt.sweep.storage import open_storage
        from cudt.sweep.worker import work

        case = self._case
        with _OPENING:
            storage = open_storage(self._url)
        queues = [_Cells(storage, f"{STUDY}{number}") for number in range(case.studies)]
        for queue in queues:
            queue.count = case.running + case.enqueued
        sources = [_Sleeping(queue, self, case.trial_seconds) for queue in queues]
        self.is_ready.set()
        go.wait()
        self.end = time.time() + case.seconds
        if case.start == "running":
            self.sleep(random.random() * case.trial_seconds)
        self.free.append(time.time())
        try:
            work(lambda: sources, is_closed=lambda: time.time() > self.end)
        except Exception:
            # What a worker cannot do, such as get a connection, is part of the result.
            self.errors += 1
