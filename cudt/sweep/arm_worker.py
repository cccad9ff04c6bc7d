"""What a worker process of a sweep does; nothing heavy is imported before its first trial."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cudt.sweep import stored
from cudt.sweep.source import in_turn
from cudt.sweep.storage import open_patiently
from cudt.sweep.worker import work

if TYPE_CHECKING:
    from cudt.utils.device import DeviceName


@dataclass(frozen=True)
class WorkerJob:
    """What a worker needs to know; it reads the sweep itself from the storage."""

    storage: str
    study: str
    """The first study of the sweep."""
    out: Path
    device: DeviceName
    data_root: Path | None
    cell_function: str
    trackers: tuple[str, ...] = ()


def main(job: WorkerJob) -> int:
    """Run trials of a sweep until nothing is left; the exit code (worker.py)."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    storage = open_patiently(job.storage)
    sweep = stored.load(storage, job.study)
    studies = stored.open_studies(sweep, storage)
    sources = stored.sources_of(
        studies, job.out, job.device, job.data_root, job.cell_function, job.trackers
    )
    return work(
        lambda: in_turn(sources),
        is_closed=lambda: stored.is_closed(studies),
        on_failure=lambda: stored.close_after_failure(studies),
    )
