"""Evaluates several runs at the same time, each in a process of its own (`cudt eval-ood
--workers`).
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from cudt.evaluation.evaluate import Grid, evaluate_ood
from cudt.runs.run import Run, open_run
from cudt.utils.workers import environments


def evaluate_all(
    runs: Sequence[Run],
    grids: Sequence[Grid],
    n_workers: int,
    device: str,
    data_root: Path | None,
    options: dict[str, Any],
) -> Iterator[tuple[int, BaseException | None]]:
    """The number of each run when it is done, and the error that ended it; `options` are those of
    `evaluate_ood`.
    """
    spawn = multiprocessing.get_context("spawn")
    shares = spawn.SimpleQueue()
    for one in environments(n_workers, device):
        shares.put(one)
    with ProcessPoolExecutor(n_workers, spawn, _begin, (shares,)) as pool:
        started = {}
        for number, (run, grid) in enumerate(zip(runs, grids, strict=True)):
            where = (run.path, run.weights, grid, device, data_root)
            started[pool.submit(_evaluate, *where, options)] = number
        for future in as_completed(started):
            yield started[future], future.exception()


def _begin(shares: Any) -> None:
    """Take one of the environments: cores, and a GPU where there are any."""
    import torch

    os.environ.update(mine := shares.get())
    torch.set_num_threads(int(mine["OMP_NUM_THREADS"]))


def _evaluate(
    path: Path, weights: Any, grid: Grid, device: str, data_root: Any, options: Any
) -> None:
    run = open_run(path, weights)
    with run.locked(wait=True):
        evaluate_ood(run, grid, device, data_root, _untracked, **options)


def _untracked(items: Iterable[Any], total: int, what: str) -> Iterable[Any]:
    return items
