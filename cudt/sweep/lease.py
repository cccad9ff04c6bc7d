"""Leases: of all workers that share a storage, one at a time uses a run.

Two cells may be the same run, and file locks do not hold between all machines that share a folder. So whoever uses a
run takes a ticket for it, a trial of the study `cudt/leases`. Optuna numbers trials in the order of their creation: the
ticket with the lowest number is served, the others wait. A ticket is valid as long as its holder has the trial that it
works on. That trial has the heartbeat, so a lost worker loses its lease with it, and a worker that cannot renew its
heartbeat stops before others may take over (worker.py).

Tickets name the run and its home: a random id in the file `.cudt-home` of the folder that holds the runs. Machines with
folders of their own train copies of a run, which nobody needs to wait for; a shared folder is the same home everywhere.
"""

from __future__ import annotations

import functools
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from cudt.sweep.shared import LostTrialError

if TYPE_CHECKING:
    from cudt.runs.run import Run

STUDY = "cudt/leases"
HOME_FILE = ".cudt-home"
#: Seconds between two looks at a lease that another worker has.
_INTERVAL = 1.0


@dataclass(frozen=True)
class Lease:
    """The leases of a worker while it runs one trial."""

    storage: BaseStorage
    trial_id: int
    """The trial that it works on."""

    @contextmanager
    def of_run(self, run: Run, out: Path) -> Iterator[None]:
        """Wait until no other worker uses a run below the folder `out`, and keep others from it."""
        with self.of(f"{home_of(out)}/{run.path.relative_to(out).as_posix()}"):
            yield

    @contextmanager
    def of(self, key: str) -> Iterator[None]:
        """Wait until no other worker has the lease of `key`, and keep it."""
        study = _study(self.storage)
        token = self._token(self.trial_id)
        attributes = {"key": key, "trial": self.trial_id, "token": token}
        template = optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs=attributes)
        ticket = self.storage.create_new_trial(study, template)
        try:
            while self._is_behind(study, ticket, key):
                time.sleep(_INTERVAL * random.uniform(0.5, 1.5))
            if self._token(self.trial_id) != token:
                raise LostTrialError
            yield
        finally:
            self._end(ticket)

    def _is_behind(self, study: int, ticket: int, key: str) -> bool:
        """Whether another valid ticket for the same run has a lower number."""
        # Of the storage itself, which reads only these; the study would read all tickets that there ever were.
        for other in self.storage.get_all_trials(study, deepcopy=False, states=(TrialState.RUNNING,)):
            if other._trial_id == ticket:
                return False
            if other.user_attrs["key"] != key:
                continue
            if self._is_valid(other):
                return True
            self._end(other._trial_id)
        return False

    def _is_valid(self, ticket: FrozenTrial) -> bool:
        return self._token(ticket.user_attrs["trial"]) == ticket.user_attrs["token"]

    def _token(self, trial_id: int) -> str | None:
        """What identifies the holder of a running trial; None if nobody has it."""
        trial = self.storage.get_trial(trial_id)
        holder = trial.user_attrs.get("holder") or {}
        return holder.get("token", "") if trial.state == TrialState.RUNNING else None

    def _end(self, ticket: int) -> None:
        with suppress(UpdateFinishedTrialError):
            self.storage.set_trial_state_values(ticket, TrialState.FAIL)


@functools.cache
def _study(storage: BaseStorage) -> int:
    """The id of the study that has the tickets."""
    return optuna.create_study(storage=storage, study_name=STUDY, load_if_exists=True)._study_id


def home_of(out: Path) -> str:
    """The id of a folder of runs, the same on all machines that share the folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / HOME_FILE
    with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        file.write(uuid.uuid4().hex)
    return _read(path)


def known_home(out: Path) -> str | None:
    """The id of a folder of runs; None if it has none yet."""
    return _read(out / HOME_FILE) if (out / HOME_FILE).is_file() else None


def _read(path: Path) -> str:
    """The contents of a file that another process may be writing at this moment."""
    end = time.monotonic() + 5
    while not (text := path.read_text(encoding="utf-8").strip()) and time.monotonic() < end:
        time.sleep(0.05)
    return text
