"""Leases: of all workers that share a storage, one at a time uses a run.

Two cells may be the same run, and file locks do not hold between all machines that share a folder. So whoever uses a
run writes it into the trial that it works on, as attribute `lease`. No two unfinished trials may have the same one
(shared.py), so others wait. A lease ends with its trial, or when the trial is given back. The trial has the heartbeat:
a lost worker loses its lease with it, and a worker that cannot renew its heartbeat stops before others may take over
(worker.py).

A lease names the run and its home: a random id in the file `.cudt-home` of the folder that holds the runs. Machines
with folders of their own train copies of a run, which nobody needs to wait for; a shared folder is the same home
everywhere.
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
        """Wait until no other worker has the lease of `key`, and keep it; LostTrialError if another has the trial."""
        # Nobody shares the memory of a process.
        while isinstance(self.storage, SharedStorage) and not self.storage.reserve(self.trial_id, LEASE, key):
            time.sleep(_INTERVAL * random.uniform(0.5, 1.5))


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
