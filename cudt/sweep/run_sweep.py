"""Run a sweep from beginning to end: start workers, watch the trials of all machines, write the
tables.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cudt.models.base import check_model
from cudt.sweep import recovery, results, stored
from cudt.sweep.arm_worker import WorkerJob
from cudt.sweep.definition import Sweep
from cudt.sweep.display import SweepDisplay
from cudt.sweep.results import Results
from cudt.sweep.source import ArmSource, RunOptions
from cudt.sweep.storage import explain_storage_errors, open_storage, own_storage, without_password
from cudt.sweep.study import ArmStudy
from cudt.sweep.watch import Crew, run_workers
from cudt.tasks.base import Task, build_task
from cudt.utils.device import choose
from cudt.utils.errors import TrainingInterruptedError, UserError
from cudt.utils.worker_processes import worker_environments


@dataclass(frozen=True)
class SweepOptions(RunOptions):
    """The options of `cudt sweep`."""

    storage: str | None = None
    """The URL of a database; by default, a SQLite file in the sweep's folder."""
    fail_fast: bool = False
    cell_function: str = "cudt.sweep.cell:run_cell"
    """The function that a worker calls for each cell."""
    join: bool = False
    """Take part in a sweep as it is, without resuming it."""
    trackers: tuple[str, ...] = ()
    """The trackers that the runs are sent to, as a group."""


def run_sweep(sweep: Sweep, options: SweepOptions, display: SweepDisplay) -> Results:
    """Run every cell that is not finished yet, together with all who joined, write the tables, and
    return them.
    """
    folder = sweep.folder(options.out)
    check_score(sweep, first_task(sweep, options))
    url = options.storage or own_storage(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with explain_storage_errors():
        studies = begin(sweep, options)
        results.write_definition(sweep, folder)
        own = (
            options.out,
            options.device,
            options.data_root,
            options.cell_function,
            options.trackers,
        )
        job = WorkerJob(url, stored.first_study(sweep), *own)
        environments = worker_environments(options.workers, options.device)
        logs = log_folder(folder, options.storage)
        crew = Crew(environments, logs, "cudt.sweep.arm_worker:main", job)
        tables = _Tables(sweep, studies, folder, resume_command(folder, options))
        stopped_by = run_workers(crew, _sources(studies, options), display, tables.looked)
        made = tables.write()
    if stopped_by:
        raise TrainingInterruptedError(
            f"{folder}: interrupted; run the same command to resume", stopped_by
        )
    return made


class _Tables:
    """The tables of a sweep, written whenever a trial has ended; a new failure closes a sweep that
    fails fast.
    """

    def __init__(
        self, sweep: Sweep, studies: Sequence[ArmStudy], folder: Path, command: str
    ) -> None:
        self._sweep, self._studies, self._folder, self._command = sweep, studies, folder, command
        self._n_failed = 0

    def looked(self, ended: set[str], n_failed: int) -> None:
        if ended:
            self.write()
        # Only once for each failure: another command may have opened the sweep again, to retry it.
        if n_failed > self._n_failed:
            stored.close_after_failure(self._studies)
        self._n_failed = n_failed

    def write(self) -> Results:
        return results.write(self._sweep, self._studies, self._folder, self._command)


def begin(sweep: Sweep, options: SweepOptions) -> list[ArmStudy]:
    """The studies of a sweep, with a trial for every cell; those of workers that are gone wait
    again.
    """
    studies = open_studies(sweep, options.storage or own_storage(sweep.folder(options.out)))
    if not options.join:
        stored.begin(sweep, studies, fail_fast=options.fail_fast, retry_failed=options.retry_failed)
    recovery.give_back_lost(_sources(studies, options))
    return studies


def log_folder(folder: Path, storage: str | None) -> Path:
    """Where workers of this machine write; machines that share the folder must not write into one
    file.
    """
    return folder / "logs" if storage is None else folder / "logs" / socket.gethostname()


def _sources(studies: Sequence[ArmStudy], options: SweepOptions) -> list[ArmSource]:
    own = (options.out, options.device, options.data_root, options.cell_function, options.trackers)
    return stored.sources_of(studies, *own)


def resume_command(folder: Path, options: SweepOptions) -> str:
    """The command that resumes a sweep, without a password; it does nothing if the sweep is
    finished.
    """
    words = ["cudt", "sweep", "--search", str(folder / "sweep.yaml"), "--out", str(options.out)]
    if options.storage is not None:
        words += ["--storage", without_password(options.storage)]
    if options.data_root is not None:
        words += ["--data-root", str(options.data_root)]
    if options.trackers:
        words += ["--track", ",".join(options.trackers)]
    return shlex.join(words)


def first_task(sweep: Sweep, options: RunOptions) -> Task:
    """The task of the first recipe; missing data, weights or devices are an error here, before
    anything is written.
    """
    choose(options.device)
    settings = sweep.first_recipe.settings
    check_model(settings.model, settings.task, options.data_root)
    return build_task(settings.task, options.data_root, settings.model.tokenizer_source)


def check_score(sweep: Sweep, task: Task) -> None:
    """Refuse to maximize a loss, or to minimize a metric of which higher is better."""
    score = sweep.search.score
    higher_is_better = task.higher_is_better and score.measure != "loss"
    if (score.direction == "maximize") != higher_is_better:
        measured = "a loss" if score.measure == "loss" else task.metric_name
        right = "maximize" if higher_is_better else "minimize"
        raise UserError(
            f"search {sweep.name}: score.direction must be '{right}' for {measured}, got "
            f"'{score.direction}'"
        )


def open_studies(sweep: Sweep, url: str | None) -> list[ArmStudy]:
    """The study of each arm in each setting; `url` None keeps them in memory."""
    return stored.open_studies(sweep, open_storage(url))
