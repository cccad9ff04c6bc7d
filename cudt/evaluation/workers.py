"""Evaluate several runs at the same time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from queue import Queue
from typing import Any

from cudt.config.schema import Weights
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.grid import EvaluationRequest
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.tasks.other_data import OtherData
from cudt.utils.errors import TrainingStoppedError, UserError
from cudt.utils.progress import Track
from cudt.utils.workers import Environment, environments


def evaluate_runs(
    runs: Sequence[Run], request: EvaluationRequest, n_workers: int, track: Track
) -> dict[Path, str]:
    """Evaluate runs and write their tables; returns why some failed. `check` the runs first."""
    failed: dict[Path, str] = {}
    context = multiprocessing.get_context("spawn")
    ready: Queue[Environment] = context.Manager().Queue()
    for environment in environments(n_workers, request.device):
        ready.put(environment)
    size = min(n_workers, len(runs))
    with ProcessPoolExecutor(size, context, _begin, (ready,)) as pool:
        work = {
            pool.submit(_evaluate, run.path, run.other_weights, run.other_data, request): run
            for run in runs
        }
        for done in track(as_completed(work), len(runs), "evaluated runs"):
            try:
                done.result()
            except (UserError, TrainingStoppedError) as error:
                failed[work[done].path] = str(error)
            except BrokenProcessPool:
                failed[work[done].path] = "a process was killed; run the same command again"
    return failed


def _begin(ready: Queue[Environment]) -> None:
    """Take a share of the machine, before the first run loads a model."""
    os.environ.update(ready.get())
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _evaluate(
    path: Path, weights: Weights | None, data: OtherData | None, asked: EvaluationRequest
) -> None:
    run, where = open_run(path, weights).on(data), (asked.device, asked.data_root, _silent)
    with run.locked(wait=True):
        evaluate_ood(run, asked.grid, *where, asked.n_samples, with_exits=asked.with_exits)


def _silent(items: Iterable[Any], total: int, what: str) -> Iterable[Any]:
    return items
