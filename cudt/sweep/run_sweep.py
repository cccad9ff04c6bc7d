"""Run a sweep from beginning to end: give cells to workers, record their results, survive whatever fails."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cudt.models.base import check_model
from cudt.runs.find import run_for
from cudt.runs.options import RunOptions
from cudt.sweep import results
from cudt.sweep.cell import updates_of
from cudt.sweep.definition import Sweep
from cudt.sweep.display import SweepDisplay
from cudt.sweep.keeper import Keeper
from cudt.sweep.messages import CellJob
from cudt.sweep.queue import MAX_DEATHS, Cell, Queue
from cudt.sweep.results import Results
from cudt.sweep.storage import explain_storage_errors, open_storage, own_storage
from cudt.sweep.study import ArmStudy
from cudt.tasks.base import Task, build_task
from cudt.utils.device import choose
from cudt.utils.errors import TrainingInterruptedError, UserError
from cudt.utils.interrupt import StopRequest
from cudt.utils.workers import Died, Done, Failed, Interrupted, Message, Reported, Warned, Workers, worker_environments


@dataclass(frozen=True)
class SweepOptions(RunOptions):
    """The options of `cudt sweep`."""

    storage: str | None = None
    """The URL of an Optuna storage; by default, a SQLite file in the sweep's folder."""
    fail_fast: bool = False
    cell_function: str = "cudt.sweep.cell:run_cell"
    """The function that a worker calls for each cell."""


def run_sweep(sweep: Sweep, options: SweepOptions, display: SweepDisplay) -> Results:
    """Run every cell that is not finished yet, write the tables, and return them."""
    folder = sweep.folder(options.out)
    check_score(sweep, first_task(sweep, options))
    with _locked(folder), explain_storage_errors():
        studies = open_studies(sweep, options.storage or own_storage(folder))
        results.write_definition(sweep, folder)
        environments = worker_environments(options.workers, options.device)
        with (
            Keeper(studies[0]) as keeper,
            StopRequest() as stop,
            Workers(environments, folder / "logs", options.cell_function) as workers,
            display,
        ):
            for study in studies:
                study.take_over(retry_failed=options.retry_failed)
            loop = _Loop(sweep, options, display, studies)
            display.begin(studies)
            loop.run(workers, stop, keeper)
        made = loop.write_results()
    if stop.requested:
        raise TrainingInterruptedError(f"{folder}: interrupted; run the same command to resume")
    return made


class _Loop:
    """Gives cells to workers and handles their messages until every cell has ended or a stop is requested."""

    def __init__(self, sweep: Sweep, options: SweepOptions, display: SweepDisplay, studies: Sequence[ArmStudy]) -> None:
        self._sweep, self._options, self._display, self._studies = sweep, options, display, studies
        self._folder = sweep.folder(options.out)
        self._queue = Queue(studies, on_refused=self._report_failure)

    def run(self, workers: Workers, stop: StopRequest, keeper: Keeper) -> None:
        while True:
            if stop.requested:
                self._display.stopping(workers.n_busy)
                self._queue.close()
                workers.stop()
            while workers.has_room and (cell := self._queue.next()):
                workers.start(cell, self._job(cell))
                self._display.started(cell)
            if not workers.is_busy:
                return
            for cell, seconds, message in workers.wait(timeout=1.0):
                self._handle(cell, seconds, message, is_stopping=stop.requested)
            keeper.beat()

    def write_results(self) -> Results:
        """Write the tables of the sweep as it is now."""
        command = resume_command(self._folder, self._options)
        return results.write(self._sweep, self._studies, self._folder, command)

    def _job(self, cell: Cell) -> CellJob:
        options, measure = self._options, self._sweep.search.score.measure
        return CellJob(cell.recipe.text(), options.out, options.device, options.data_root, measure, self._sweep.gammas)

    def _handle(self, cell: Cell, seconds: float, message: Message, *, is_stopping: bool) -> None:
        match message:
            case Reported(progress):
                self._display.progress(cell, progress)
            case Warned(text):
                self._display.warn(text)
            case _:
                cell.seconds += seconds
                self._display.ended(cell)
                self._end(cell, message, is_stopping)
                self.write_results()

    def _end(self, cell: Cell, message: Message, is_stopping: bool) -> None:
        """Record how a worker's job ended."""
        match message:
            case Done(result):
                cell.study.finish(cell.trial.number, result.score, {**result.facts, **self._spent(cell)})
                self._display.finished(cell, result.score)
            case Failed(reason):
                self._fail(cell, reason)
            case Interrupted() | Died() if is_stopping:
                cell.study.remember(cell.trial.number, cell.spent())
                self._display.interrupted(cell)
            case Interrupted():
                # Another process sent the worker the signal that we would have sent.
                self._retry(cell, "by a stop signal")
            case Died(how):
                self._retry(cell, how)

    def _retry(self, cell: Cell, how: str) -> None:
        cell.deaths += 1
        if cell.deaths < MAX_DEATHS:
            cell.study.remember(cell.trial.number, cell.spent())
            self._display.died(cell, how)
            self._queue.give_back(cell)
        else:
            self._fail(cell, f"{cell.deaths} workers died while running it, the last one {how}")

    def _fail(self, cell: Cell, reason: str) -> None:
        updates = updates_of(run_for(cell.recipe, self._options.out))
        cell.study.fail(cell.trial.number, reason, {**self._spent(cell), "updates": updates})
        self._report_failure(cell.name, reason)

    def _report_failure(self, name: str, reason: str) -> None:
        self._display.failed(name, reason)
        if self._options.fail_fast:
            self._queue.close()

    def _spent(self, cell: Cell) -> dict[str, Any]:
        return {"run": run_for(cell.recipe, Path()).path.as_posix(), **cell.spent()}


def resume_command(folder: Path, options: RunOptions) -> str:
    """The command that resumes a sweep; it does nothing if the sweep is finished."""
    words = ["cudt", "sweep", "--search", str(folder / "sweep.yaml"), "--out", str(options.out)]
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
    storage = open_storage(url)
    return [ArmStudy(sweep, setting, arm, storage) for setting in sweep.settings for arm in sweep.search.arms]


def _locked(folder: Path) -> Any:
    """Keep a second sweep on this machine out of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / ".lock", timeout=0).acquire()
    except Timeout:
        raise UserError(
            f"{folder}: another process is running this sweep; wait until it finishes, or stop it first"
        ) from None
