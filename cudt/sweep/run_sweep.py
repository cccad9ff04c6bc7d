"""Run a sweep from beginning to end: start workers, watch the trials of all machines, write the tables."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cudt.models.base import check_model
from cudt.runs.options import RunOptions
from cudt.sweep import recovery, results, stored, worker
from cudt.sweep.arm_worker import WorkerJob
from cudt.sweep.definition import Sweep
from cudt.sweep.display import SweepDisplay
from cudt.sweep.observer import Observer
from cudt.sweep.queue import MAX_DEATHS
from cudt.sweep.results import Results
from cudt.sweep.shared import heartbeat_interval
from cudt.sweep.source import ArmSource
from cudt.sweep.storage import explain_storage_errors, open_storage, own_storage, without_password
from cudt.sweep.study import ArmStudy
from cudt.tasks.base import Task, build_task
from cudt.utils.device import choose
from cudt.utils.errors import TrainingInterruptedError, UserError
from cudt.utils.interrupt import StopRequest
from cudt.utils.worker_processes import Ended, Processes, worker_environments

#: Seconds between two looks at the storage, for every so many trials; and at workers.
_INTERVAL, _TRIALS, _WAIT = 1.0, 200, 0.2


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


def run_sweep(sweep: Sweep, options: SweepOptions, display: SweepDisplay) -> Results:
    """Run every cell that is not finished yet, together with all who joined, write the tables, and return them."""
    folder = sweep.folder(options.out)
    check_score(sweep, first_task(sweep, options))
    url = options.storage or own_storage(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with explain_storage_errors():
        studies = begin(sweep, options)
        results.write_definition(sweep, folder)
        job = WorkerJob(
            url, stored.first_study(sweep), options.out, options.device, options.data_root, options.cell_function
        )
        environments = worker_environments(options.workers, options.device)
        with (
            StopRequest() as stop,
            Processes(environments, _logs(folder, options), "cudt.sweep.arm_worker:main", job) as workers,
            display,
        ):
            watch = _Watch(sweep, options, display, studies)
            watch.run(workers, stop)
        made = watch.write_results()
    if stop.requested:
        raise TrainingInterruptedError(f"{folder}: interrupted; run the same command to resume")
    return made


def begin(sweep: Sweep, options: SweepOptions) -> list[ArmStudy]:
    """The studies of a sweep, with a trial for every cell; those of workers that are gone wait again."""
    studies = open_studies(sweep, options.storage or own_storage(sweep.folder(options.out)))
    if not options.join:
        stored.begin(sweep, studies, fail_fast=options.fail_fast, retry_failed=options.retry_failed)
    recovery.give_back_lost(_sources(studies, options))
    return studies


def _logs(folder: Path, options: SweepOptions) -> Path:
    # Machines that share the folder must not write into one file.
    return folder / "logs" if options.storage is None else folder / "logs" / socket.gethostname()


class _Watch:
    """Watches the storage and the workers of this machine until the workers end."""

    def __init__(self, sweep: Sweep, options: SweepOptions, display: SweepDisplay, studies: Sequence[ArmStudy]) -> None:
        self._sweep, self._options, self._display, self._studies = sweep, options, display, studies
        self._folder = sweep.folder(options.out)
        self._sources = _sources(studies, options)
        self._observer = Observer(studies, display)
        self._fruitless = 0
        display.begin(studies)

    def run(self, workers: Processes, stop: StopRequest) -> None:
        looked = recovered = time.monotonic()
        while workers.n_running:
            if stop.requested:
                self._display.stopping(workers.n_running)
                workers.stop()
            for ended in workers.wait(_WAIT):
                self._handle(ended, workers, is_stopping=stop.requested)
            if time.monotonic() - looked > _INTERVAL * max(1, self._observer.n_open / _TRIALS):
                self._look()
                looked = time.monotonic()
            if time.monotonic() - recovered > heartbeat_interval():
                recovery.give_back_lost(self._sources)
                recovered = time.monotonic()
        self._look()

    def write_results(self) -> Results:
        """Write the tables of the sweep as it is now."""
        command = resume_command(self._folder, self._options)
        return results.write(self._sweep, self._studies, self._folder, command)

    def _look(self) -> None:
        if self._observer.look():
            self.write_results()
        if self._observer.n_failed:
            stored.close_after_failure(self._studies)

    def _handle(self, ended: Ended, workers: Processes, *, is_stopping: bool) -> None:
        """Give back the trial of a worker that has ended, and start it again unless nothing is left."""
        is_death = ended.code not in (worker.DONE, worker.STOPPED, worker.RESTART) and not is_stopping
        had_trial = recovery.give_back_of_process(self._sources, ended.process, ended.how if is_death else "")
        self._fruitless = self._fruitless + 1 if is_death and not had_trial else 0
        if self._fruitless >= MAX_DEATHS:
            raise UserError(f"{self._fruitless} worker processes ended before they ran a trial, the last {ended.how}")
        self._look()
        if ended.code != worker.DONE and not is_stopping:
            workers.start(ended.worker)


def _sources(studies: Sequence[ArmStudy], options: SweepOptions) -> list[ArmSource]:
    return stored.sources_of(studies, options.out, options.device, options.data_root, options.cell_function)


def resume_command(folder: Path, options: SweepOptions) -> str:
    """The command that resumes a sweep, without a password; it does nothing if the sweep is finished."""
    words = ["cudt", "sweep", "--search", str(folder / "sweep.yaml"), "--out", str(options.out)]
    if options.storage is not None:
        words += ["--storage", without_password(options.storage)]
    if options.data_root is not None:
        words += ["--data-root", str(options.data_root)]
    return shlex.join(words)


def first_task(sweep: Sweep, options: RunOptions) -> Task:
    """The task of the first recipe; missing data, weights or devices are an error here, before anything is written."""
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
            f"search {sweep.name}: score.direction must be '{right}' for {measured}, got '{score.direction}'"
        )


def open_studies(sweep: Sweep, url: str | None) -> list[ArmStudy]:
    """The study of each arm in each setting; `url` None keeps them in memory."""
    return stored.open_studies(sweep, open_storage(url))
