"""A sweep from beginning to end: cells are handed out, outcomes come in, whatever happens in between."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cudt.models.base import check_model
from cudt.runs.run import run_for
from cudt.sweep import results
from cudt.sweep.cell import Job, updates_of
from cudt.sweep.definition import Sweep
from cudt.sweep.display import SweepDisplay
from cudt.sweep.keeper import Keeper
from cudt.sweep.queue import MOST_DEATHS, Cell, Queue
from cudt.sweep.results import Results
from cudt.sweep.storage import open_storage, own_storage, told
from cudt.sweep.study import ArmStudy
from cudt.sweep.workers import Died, Done, Failed, Interrupted, Message, Note, Progress, Workers
from cudt.tasks.base import Task, build_task
from cudt.utils.device import DeviceName, choose
from cudt.utils.errors import TrainingInterruptedError, UserError
from cudt.utils.interrupt import StopRequest


@dataclass(frozen=True)
class Options:
    """How a sweep is done; nothing of this changes what comes out."""

    out: Path
    device: DeviceName = "auto"
    data_root: Path | None = None
    workers: int = 1
    storage: str | None = None
    """An Optuna storage; else a SQLite file in the sweep's folder."""
    fail_fast: bool = False
    retry_failed: bool = False
    do: str = "cudt.sweep.cell:do"
    """What a worker does with a cell."""


def conduct(sweep: Sweep, options: Options, display: SweepDisplay) -> Results:
    """Do every cell that is not done yet, write the tables, and tell the best of each arm."""
    folder = sweep.folder(options.out)
    check_score(sweep, first_task(sweep, options))
    with _alone(folder), told():
        studies = open_studies(sweep, options.storage or own_storage(folder))
        results.write_definition(sweep, folder)
        command = repeating(folder, options)
        with (
            Keeper(studies[0]) as keeper,
            StopRequest() as stop,
            Workers(environments(options), folder / "logs", options.do) as workers,
            display,
        ):
            for study in studies:
                study.take_over(retry_failed=options.retry_failed)
            queue = Queue(studies, refused=lambda name, reason: failed(name, reason))

            def failed(name: str, reason: str) -> None:
                display.failed(name, reason)
                if options.fail_fast:
                    queue.close()

            hands = _Hands(queue, display, options.out, failed)
            display.begin(studies)
            while True:
                if stop.requested:
                    display.stopping(workers.n_busy)
                    queue.close()
                    workers.stop()
                while workers.has_room and (cell := queue.next()):
                    workers.start(cell, _job(sweep, cell, options))
                    display.started(cell)
                if not workers.is_busy:
                    break
                for cell, seconds, message in workers.wait(timeout=1.0):
                    if hands.take(cell, seconds, message, is_stopping=stop.requested):
                        results.write(sweep, studies, folder, command)
                keeper.beat()
        made = results.write(sweep, studies, folder, command)
    if stop.requested:
        raise TrainingInterruptedError(f"{folder}: interrupted; the same command goes on from here")
    return made


@dataclass(frozen=True)
class _Hands:
    """Takes in what workers tell about their cells."""

    queue: Queue
    display: SweepDisplay
    out: Path
    failed: Callable[[str, str], None]

    def take(self, cell: Cell, seconds: float, message: Message, *, is_stopping: bool) -> bool:
        """Whether the tables have changed."""
        if isinstance(message, Progress):
            self.display.progress(cell, message)
            return False
        if isinstance(message, Note):
            self.display.note(message.text)
            return False
        cell.seconds += seconds
        self.display.ended(cell)
        match message:
            case Done(outcome):
                cell.study.finish(cell.trial.number, outcome.score, {**outcome.facts, **self._spent(cell)})
                self.display.finished(cell, outcome.score)
            case Failed(reason):
                self._fail(cell, reason)
            case Interrupted() | Died() if is_stopping:
                cell.study.remember(cell.trial.number, cell.spent())
                self.display.put_aside(cell)
            case Interrupted():
                # Somebody else ended the worker, as politely as we would have.
                self._give_back(cell, "because it was told to")
            case Died(how):
                self._give_back(cell, how)
        return True

    def _give_back(self, cell: Cell, how: str) -> None:
        cell.deaths += 1
        if cell.deaths < MOST_DEATHS:
            cell.study.remember(cell.trial.number, cell.spent())
            self.display.died(cell, how)
            self.queue.give_back(cell)
        else:
            self._fail(cell, f"{cell.deaths} workers died on it, the last {how}")

    def _fail(self, cell: Cell, reason: str) -> None:
        updates = updates_of(run_for(cell.recipe, self.out))
        cell.study.fail(cell.trial.number, reason, {**self._spent(cell), "updates": updates})
        self.failed(cell.name, reason)

    def _spent(self, cell: Cell) -> dict[str, Any]:
        return {"run": run_for(cell.recipe, Path()).path.as_posix(), **cell.spent()}


def repeating(folder: Path, options: Options) -> str:
    """The command that goes on with a sweep, or finds that it is done."""
    words = ["cudt", "sweep", "--search", str(folder / "sweep.yaml"), "--out", str(options.out)]
    if options.data_root is not None:
        words += ["--data-root", str(options.data_root)]
    return shlex.join(words)


def _job(sweep: Sweep, cell: Cell, options: Options) -> Job:
    measure = sweep.search.score.measure
    return Job(cell.recipe.text(), options.out, options.device, options.data_root, measure, sweep.gammas)


def first_task(sweep: Sweep, options: Options) -> Task:
    """The task of the first cell; refuses, before anything is run, data or weights that are not there."""
    choose(options.device)
    arm = next(iter(sweep.search.arms))
    settings = sweep.recipe(sweep.settings[0], arm, sweep.first(arm)).settings
    check_model(settings.model, settings.task, options.data_root)
    return build_task(settings.task, options.data_root, settings.model.tokenizer_source)


def check_score(sweep: Sweep, task: Task) -> None:
    """Refuse a score that is turned upside down."""
    score = sweep.search.score
    higher_is_better = task.higher_is_better and score.measure != "loss"
    if (score.direction == "maximize") != higher_is_better:
        what = "the loss" if score.measure == "loss" else task.metric_name
        better = "maximize" if higher_is_better else "minimize"
        raise UserError(f"search {sweep.name}: score.direction = '{score.direction}': of {what}, {better} is meant")


def open_studies(sweep: Sweep, url: str | None) -> list[ArmStudy]:
    storage = open_storage(url)
    return [ArmStudy(sweep, setting, arm, storage) for setting in sweep.settings for arm in sweep.search.arms]


def _alone(folder: Path) -> Any:
    """Keep a second sweep on this machine out of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / ".lock", timeout=0).acquire()
    except Timeout:
        raise UserError(f"{folder}: another process is at work on this sweep") from None


def environments(options: Options) -> list[dict[str, str]]:
    """What each worker finds in its environment: its share of the cores, and a GPU of its own where there are some."""
    given = os.environ.get("OMP_NUM_THREADS")
    share = given or str(max(1, _n_cores() // options.workers))
    visible = _gpus(options.device)
    return [
        {"OMP_NUM_THREADS": share, **({"CUDA_VISIBLE_DEVICES": visible[number % len(visible)]} if visible else {})}
        for number in range(options.workers)
    ]


def _n_cores() -> int:
    """Those that we may use: a container or a cluster may give us few of many."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus(device: DeviceName) -> list[str]:
    """The GPUs that we may use, as CUDA_VISIBLE_DEVICES names them; none where it makes no difference."""
    if choose(device).type != "cuda":
        return []
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named or [str(number) for number in range(torch.cuda.device_count())]
