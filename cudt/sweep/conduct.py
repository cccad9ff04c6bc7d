"""A sweep from beginning to end: cells are handed out, outcomes come in, whatever happens in between."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cudt import models, runs, tasks
from cudt.device import DeviceName, choose
from cudt.errors import TrainingInterruptedError, UserError
from cudt.interrupt import StopRequest
from cudt.sweep import results
from cudt.sweep.cell import Job
from cudt.sweep.definition import Sweep
from cudt.sweep.display import SweepDisplay
from cudt.sweep.queue import MOST_DEATHS, Cell, Queue
from cudt.sweep.results import Results
from cudt.sweep.study import ArmStudy, Keeper, open_storage
from cudt.sweep.workers import Died, Done, Failed, Interrupted, Message, Note, Progress, Workers


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
    check_task(sweep, options)
    with _alone(folder):
        studies = open_studies(sweep, options.storage or own_storage(folder))
        results.write_definition(sweep, folder)
        with (
            Keeper(studies[0]) as keeper,
            StopRequest() as stop,
            Workers(environments(options), folder / "logs", options.do) as workers,
            display,
        ):
            for study in studies:
                study.take_over(retry_failed=options.retry_failed)
            queue = Queue(studies)
            display.begin(studies)
            while True:
                if stop.requested:
                    queue.close()
                    workers.stop()
                while workers.has_room and (cell := queue.next()):
                    workers.start(cell, _job(sweep, cell, options))
                    display.started(cell)
                if not workers.is_busy:
                    break
                for cell, seconds, message in workers.wait(timeout=1.0):
                    if _handle(cell, seconds, message, queue, display, is_stopping=stop.requested):
                        results.write(sweep, studies, folder)
                    if options.fail_fast and isinstance(message, Failed):
                        queue.close()
                keeper.beat()
        made = results.write(sweep, studies, folder)
    if stop.requested:
        raise TrainingInterruptedError(f"{folder}: interrupted; the same command goes on from here")
    return made


def _handle(
    cell: Cell, seconds: float, message: Message, queue: Queue, display: SweepDisplay, *, is_stopping: bool
) -> bool:
    """Take in what a worker told about its cell; whether the tables have changed."""
    match message:
        case Progress():
            display.progress(cell, message)
            return False
        case Note(text):
            display.note(text)
            return False
        case Done(outcome):
            cell.study.finish(cell.trial.number, outcome.score, {**outcome.facts, **_spent(cell, seconds)})
            display.finished(cell, outcome.score)
        case Failed(reason):
            cell.study.fail(cell.trial.number, reason, _spent(cell, seconds))
            display.failed(cell, reason)
        case Interrupted():
            display.put_aside(cell)
        case Died() if is_stopping:
            display.put_aside(cell)
        case Died(how):
            cell.deaths, cell.seconds = cell.deaths + 1, cell.seconds + seconds
            if cell.deaths < MOST_DEATHS:
                display.died(cell, how)
                queue.give_back(cell)
            else:
                reason = f"{cell.deaths} workers died on it, the last {how}"
                cell.study.fail(cell.trial.number, reason, _spent(cell, 0.0))
                display.failed(cell, reason)
    return True


def _spent(cell: Cell, seconds: float) -> dict[str, Any]:
    return {"run": run_name(cell), "seconds": round(cell.seconds + seconds, 1), "deaths": cell.deaths}


def run_name(cell: Cell) -> str:
    """The run's folder, from the folder of all runs."""
    return runs.run_for(cell.recipe, Path()).path.as_posix()


def _job(sweep: Sweep, cell: Cell, options: Options) -> Job:
    measure = sweep.search.score.measure
    return Job(cell.recipe.text(), options.out, options.device, options.data_root, measure, sweep.gammas)


def check_task(sweep: Sweep, options: Options) -> None:
    """Refuse, before anything is run, data or weights that are not there, and a score turned upside down."""
    choose(options.device)
    arm = next(iter(sweep.search.arms))
    settings = sweep.recipe(sweep.settings[0], arm, sweep.first(arm)).settings
    models.check(settings.model, settings.task, options.data_root)
    task = tasks.build(settings.task, options.data_root, settings.model.tokenizer_source)
    score = sweep.search.score
    higher_is_better = task.higher_is_better and score.measure != "loss"
    if (score.direction == "maximize") != higher_is_better:
        what = "the loss" if score.measure == "loss" else task.metric_name
        better = "maximize" if higher_is_better else "minimize"
        raise UserError(f"search {sweep.name}: score.direction = '{score.direction}': of {what}, {better} is meant")


def open_studies(sweep: Sweep, url: str | None) -> list[ArmStudy]:
    storage = open_storage(url)
    return [ArmStudy(sweep, setting, arm, storage) for setting in sweep.settings for arm in sweep.search.arms]


def own_storage(folder: Path) -> str:
    return f"sqlite:///{(folder / 'study.db').resolve()}"


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
    share = given or str(max(1, (os.cpu_count() or 1) // options.workers))
    visible = _gpus(options.device)
    return [
        {"OMP_NUM_THREADS": share, **({"CUDA_VISIBLE_DEVICES": visible[number % len(visible)]} if visible else {})}
        for number in range(options.workers)
    ]


def _gpus(device: DeviceName) -> list[str]:
    """The GPUs that we may use, as CUDA_VISIBLE_DEVICES names them; none where it makes no difference."""
    if choose(device).type != "cuda":
        return []
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named or [str(number) for number in range(torch.cuda.device_count())]
