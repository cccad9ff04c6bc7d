"""Leases: of all workers that share a storage, one at a time uses a run.

Two cells may be the same run, and file locks do not hold between all machines that share a folder.
So whoever uses a run writes it into the trial that it works on, as attribute `lease`. No two
unfinished trials may have the same one (shared.py), so others wait. A lease ends with its trial, or
when the trial is given back. The trial has the heartbeat: a lost worker loses its lease with it,
and a worker that cannot renew its heartbeat stops before others may take over (worker.py).

A lease names the run and its home: a random id in the file `.cudt-home` of the folder that holds
the runs. Machines with folders of their own train copies of a run, which nobody needs to wait for;
a shared folder is the same home everywhere.
"""

from __future__ import annotations

import random
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.storages import BaseStorage

from cudt.sweep.shared import SharedStorage

if TYPE_CHECKING:
    from cudt.runs.run import Run

#: The attribute of a trial that has its lease.
LEASE = "lease"
HOME_FILE = ".cudt-home"
#: Seconds between two looks at a lease that another worker has.
_INTERVAL = 1.0
#: Seconds in which a process writes the id of a folder.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Lease:
    """What a worker uses while it runs a trial; one run at a time."""

    storage: BaseStorage
    trial_id: int
    """The trial that it works on."""

    def take_run(self, run: Run, out: Path) -> None:
        """Wait until no other worker uses a run below the folder `out`, and keep others from it."""
        self.take(f"{home_of(out)}/{run.path.relative_to(out).as_posix()}")

    def take(self, key: str) -> None:
        """Wait until no other worker has the lease of `key`, and keep it; LostTrialError if another
        has the trial.
        """
        # Nobody shares the memory of a process.
        while isinstance(self.storage, SharedStorage) and not self.storage.reserve(
            self.trial_id, LEASE, key
        ):
            time.sleep(_INTERVAL * random.uniform(0.5, 1.5))


def home_of(out: Path) -> str:
    """The id of a folder of runs, the same on all machines that share the folder."""
    out.mkdir(parents=True, exist_ok=True)
    while (known := _known_home(out / HOME_FILE)) is None:
        _write_home(out / HOME_FILE)
    return known


def _known_home(path: Path) -> str | None:
    end = time.monotonic() + _PATIENCE
    while path.is_file():
        if text := path.read_text(encoding="utf-8").strip():
            return text
        if time.monotonic() > end:
            # Left by a process that was killed.
            path.unlink(missing_ok=True)
        # Another process may be writing it at this moment.
        time.sleep(0.05)
    return None


def _write_home(path: Path) -> None:
    """Write a new id, unless another process is faster."""
    with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        file.write(uuid.uuid4().hex)
