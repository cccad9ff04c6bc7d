"""Start workers on this machine, and watch the trials of all machines until the workers here have
ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import DBAPIError

from cudt.sweep import recovery, worker
from cudt.sweep.database import PATIENCE, is_away, is_server
from cudt.sweep.display import SweepDisplay
from cudt.sweep.observer import Observer
from cudt.sweep.queue import MAX_DEATHS
from cudt.sweep.shared import SharedStorage, heartbeat_interval
from cudt.sweep.source import Source
from cudt.utils.errors import MachineFaultError, StopRequest, UserError
from cudt.utils.worker_processes import Ended, Processes

#: Seconds between two looks at the storage, in a file and on a server, for every 200 trials; and at
#: workers.
_INTERVAL, _ON_SERVER, _TRIALS, _WAIT = 1.0, 4.0, 200, 0.2
#: Called after every look at the storage with the names of the queues in which a trial has ended,
#: and how many have failed; after a fault of the machine, once more with all queues.
OnLook = Callable[[set[str], int], None]


@dataclass(frozen=True)
class Crew:
    """The workers of this machine."""

    environments: Sequence[dict[str, str]]
    """One for each worker."""
    logs: Path
    function: str
    """What a worker calls with `job`, as `module:function`; its exit code is one of worker.py."""
    job: Any


def run_workers(
    crew: Crew, sources: Sequence[Source], display: SweepDisplay, on_look: OnLook
) -> int:
    """Let workers run the trials of some sources, together with all who joined; returns the signal
    that stopped them.

    It is 0 if none did. A fault of the machine stops all workers of this command, and is raised as
    MachineFaultError.
    """
    with (
        StopRequest() as stop,
        Processes(crew.environments, crew.logs, crew.function, crew.job) as workers,
        display,
    ):
        fault = _Watch(sources, display, on_look).run(workers, stop)
    if fault is not None:
        raise MachineFaultError(fault)
    return stop.signal_number


class _Watch:
    """Watches the storage and the workers of this machine until the workers end."""

    def __init__(self, sources: Sequence[Source], display: SweepDisplay, on_look: OnLook) -> None:
        self._sources, self._display, self._on_look = sources, display, on_look
        queues = [source.queue for source in sources]
        self._observer = Observer(queues, display)
        self._storage = queues[0].storage if queues else None
        self._interval = (
            _ON_SERVER if self._storage is not None and is_server(self._storage) else _INTERVAL
        )
        self._fruitless = 0
        self._ended: list[Ended] = []
        self._answered = time.monotonic()
        self._is_stopping = False
        self._fault: str | None = None
        # By the same look: what ends from now on is shown and counted.
        display.begin(queues, self._observer.n_done)

    def run(self, workers: Processes, stop: StopRequest) -> str | None:
        """Watch until all workers have ended; returns the fault of the machine that stopped them,
        if one did.
        """
        looked = recovered = time.monotonic()
        while workers.n_running or self._ended:
            if stop.requested or self._fault is not None:
                if not self._is_stopping:
                    self._is_stopping = True
                    # What is seen to run now is reported as interrupted.
                    self._try(self._look)
                self._display.stopping(workers.n_running)
                workers.stop()
            self._ended.extend(workers.wait(_WAIT))
            if self._ended:
                self._try(
                    lambda: self._handle_ended(
                        workers, is_stopping=stop.requested or self._fault is not None
                    )
                )
            if time.monotonic() - looked > self._interval * max(1, self._observer.n_open / _TRIALS):
                self._try(self._look)
                looked = time.monotonic()
            if time.monotonic() - recovered > heartbeat_interval():
                self._try(lambda: recovery.give_back_lost(self._sources))
                recovered = time.monotonic()
        self._look()
        if self._fault is not None:
            # The tables also say what waits. A full disk has no room for them.
            with suppress(OSError, StorageInternalError, DBAPIError):
                self._on_look(
                    {source.queue.name for source in self._sources}, self._observer.n_failed
                )
        return self._fault

    def _try(self, action: Callable[[], None]) -> None:
        """Do something with the storage unless it is away: whoever waited for it could not tell
        workers to stop.
        """
        try:
            with (
                self._storage.hasty() if isinstance(self._storage, SharedStorage) else nullcontext()
            ):
                action()
            self._answered = time.monotonic()
        except (StorageInternalError, DBAPIError) as error:
            if not is_away(error) or time.monotonic() - self._answered > PATIENCE:
                raise

    def _look(self) -> None:
        self._on_look(self._observer.look(), self._observer.n_failed)

    def _handle_ended(self, workers: Processes, *, is_stopping: bool) -> None:
        while self._ended:
            self._handle(self._ended[0], workers, is_stopping=is_stopping)
            del self._ended[0]
            self._look()

    def _handle(self, ended: Ended, workers: Processes, *, is_stopping: bool) -> None:
        """Give back the trial of a worker that has ended, and start it again unless nothing is
        left.
        """
        if ended.fault is not None:
            self._fault = self._fault or ended.fault
            # It has given its trial back itself, unless the storage is what failed.
            recovery.give_back_of_process(self._sources, ended.process, "", is_fault=True)
            return
        is_death = (
            ended.code not in (worker.DONE, worker.STOPPED, worker.RESTART) and not is_stopping
        )
        had_trial = recovery.give_back_of_process(
            self._sources, ended.process, ended.how if is_death else ""
        )
        self._fruitless = self._fruitless + 1 if is_death and not had_trial else 0
        if self._fruitless >= MAX_DEATHS:
            raise UserError(
                f"{self._fruitless} worker processes ended before they ran a trial, the last "
                f"{ended.how}"
            )
        if ended.code != worker.DONE and not is_stopping:
            workers.start(ended.worker)
