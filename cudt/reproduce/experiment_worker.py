"""What a worker process of a reproduction does: trials of all experiments, in the order of their
cost.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cudt.reproduce import stored
from cudt.reproduce.queues import ExperimentQueues
from cudt.reproduce.scale import Experiment
from cudt.reproduce.stored import ReproduceOptions
from cudt.sweep.run_sweep import SweepOptions, check_score, first_task
from cudt.sweep.source import Source
from cudt.sweep.storage import open_patiently
from cudt.sweep.stored import first_study
from cudt.sweep.worker import work
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.utils.device import DeviceName


@dataclass(frozen=True)
class ReproductionJob:
    """What a worker needs to know; it reads the experiments from the storage."""

    storage: str
    study: str
    """The root study of the reproduction."""
    experiments: tuple[str, ...]
    """The first study of each experiment to take part in, in order."""
    out: Path
    device: DeviceName
    data_root: Path | None


def main(job: ReproductionJob) -> int:
    """Run trials until nothing is left; the exit code (sweep/worker.py)."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    storage = open_patiently(job.storage)
    # Not by number: another command may have replaced the scale since.
    begun = {first_study(one.sweep): one for one in stored.load(storage, job.study).experiments}
    experiments = [begun[study] for study in job.experiments if study in begun]
    options = ReproduceOptions(job.out, job.device, job.data_root, storage=job.storage)
    queues = [ExperimentQueues(one, storage, options) for one in experiments]
    usable: dict[str, bool] = {}

    def sources() -> Iterator[Source]:
        for one in queues:
            if not one.is_done:
                name = one.experiment.name
                if name not in usable:
                    usable[name] = not _announced(unusable(one.experiment, one.options))
                if usable[name]:
                    yield from one.in_turn()

    return work(sources)


def unusable(experiment: Experiment, options: SweepOptions) -> str:
    """Why an experiment cannot run on this machine although no file is missing; empty if it can.

    A worker that took its trials anyway would fail all of them, although other machines can run
    them.
    """
    try:
        check_score(experiment.sweep, first_task(experiment.sweep, options))
    except UserError as error:
        return str(error)
    return ""


def _announced(problem: str) -> str:
    if problem:
        print(problem, file=sys.stderr)
    return problem
