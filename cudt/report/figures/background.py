"""Draw figures in processes of their own, one for each core, while the report is written."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache

from cudt.report.figures.saving import Figure

Job = Callable[[], Figure]
#: In a worker: what it may be asked to do.
_jobs: list[Job] = []


@contextmanager
def in_background(jobs: Sequence[Job]) -> Iterator[Callable[[], list[Figure]]]:
    """Start to draw; the function that this gives waits for all figures and returns them in the order of the jobs.

    On one core, or where processes cannot be forked safely, it draws them itself.
    """
    workers = min(cores(), len(jobs))
    if workers < 2:
        yield cache(lambda: [job() for job in jobs])
        return
    # Forked workers have all runs in memory and all modules imported.
    forked = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, forked, initializer=_prepare, initargs=(jobs,))
    try:
        # The last figures, which show all recipes, take longest.
        started = {number: pool.submit(_draw, number) for number in reversed(range(len(jobs)))}
        yield cache(lambda: [_result(started[number], job) for number, job in enumerate(jobs)])
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """The cores that may draw: one where a fork is not safe with all libraries, as on macOS."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def _prepare(jobs: Sequence[Job]) -> None:
    """Begin as a worker."""
    _jobs.extend(jobs)
    # Ctrl-C stops the command, which stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A progress display may have been about to write when the process was forked; nobody would release its lock.
    sys.stdout = sys.stderr = io.StringIO()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End when the command was killed; a worker would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _draw(number: int) -> Figure | None:
    """Draw one figure in a worker; None if there is anything to tell the user."""
    said = sys.stderr.tell()
    with warnings.catch_warnings(record=True) as warned:
        try:
            figure = _jobs[number]()
        except Exception:
            return None
    return None if warned or sys.stderr.tell() > said else figure


def _result(drawn: Future[Figure | None], job: Job) -> Figure:
    """The figure; drawn again here if that failed or warned, so that the user sees why, as if there were no workers."""
    try:
        return drawn.result() or job()
    except BrokenProcessPool:
        return job()
