"""Evaluate runs by several worker processes (`cudt eval-ood --workers`), as trials in a temporary
storage.

A run is a trial. With more workers than runs, the noise levels of a run are divided into shares:
each is measured by a trial, and a last trial writes the tables, which are those of a single process
to the last bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from optuna.storages import BaseStorage

from cudt.evaluation.grid import EvaluationRequest
from cudt.runs.find import open_run
from cudt.sweep.definition import Parameters
from cudt.sweep.display import SweepDisplay
from cudt.sweep.lease import Lease
from cudt.sweep.messages import CellProgress, CellResult
from cudt.sweep.queue import Key, Trial, TrialQueue
from cudt.sweep.source import Report
from cudt.sweep.storage import open_patiently, own_storage
from cudt.sweep.watch import Crew, run_workers
from cudt.sweep.worker import work
from cudt.utils.errors import MachineFaultError, TrainingInterruptedError
from cudt.utils.files import delete, folder_next_to
from cudt.utils.progress import Track
from cudt.utils.worker_processes import worker_environments

if TYPE_CHECKING:
    from cudt.config.other_data import OtherData
    from cudt.config.schema import Weights
    from cudt.runs.run import Run

#: The cell that writes the tables of a run.
_TABLES = "tables"


class RunName(NamedTuple):
    """What identifies a run in another process."""

    path: Path
    weights: Weights | None
    data: OtherData | None

    def open(self) -> Run:
        return open_run(self.path, self.weights).on(self.data)


@dataclass(frozen=True)
class EvaluationJob:
    """What a worker needs to know."""

    storage: str
    runs: tuple[tuple[RunName, Path | None], ...]
    """The runs, and a folder for what is measured of the shares of each."""
    n_shares: int
    request: EvaluationRequest


def evaluate_runs(
    runs: Sequence[Run], request: EvaluationRequest, n_workers: int, display: SweepDisplay
) -> dict[Path, str]:
    """Evaluate runs and write their tables; returns why some failed. `check` the runs first."""
    n_shares = _n_shares(runs, n_workers)
    with ExitStack() as stack:
        measured = [
            stack.enter_context(_measured_folder(run)) if n_shares > 1 else None for run in runs
        ]
        storage = stack.enter_context(_storage_folder())
        temporary = _folder_of_logs(storage)
        names = (RunName(run.path, run.other_weights, run.other_data) for run in runs)
        named = tuple(zip(names, measured, strict=True))
        job = EvaluationJob(own_storage(storage), named, n_shares, request)
        sources = _sources(job, open_patiently(job.storage))
        for source in sources:
            source.queue.top_up()
        n_started = min(n_workers, len(runs) * n_shares)
        environments = worker_environments(n_workers, request.device)[:n_started]
        crew = Crew(environments, temporary / "logs", "cudt.sweep.evaluate_runs:main", job)
        try:
            stopped_by = run_workers(crew, sources, display, lambda ended, n_failed: None)
        except MachineFaultError:
            delete(temporary)
            raise
        found = {
            run.path: _problem(source.queue) for run, source in zip(runs, sources, strict=True)
        }
        # The logs may say more.
        failed = {
            path: f"{problem}; logs are in {crew.logs}"
            for path, problem in found.items()
            if problem
        }
        if stopped_by or not failed:
            delete(temporary)
    if stopped_by:
        raise TrainingInterruptedError("interrupted; run the same command again", stopped_by)
    return failed


@contextmanager
def _storage_folder() -> Iterator[Path]:
    """A temporary folder for the storage."""
    path = Path(tempfile.gettempdir()) / "cudt-eval-ood"
    with folder_next_to(path) as folder:
        _folder_of_logs(folder).mkdir()
        yield folder


def _folder_of_logs(storage: Path) -> Path:
    return storage.with_name(storage.name.removeprefix("."))


@contextmanager
def _measured_folder(run: Run) -> Iterator[Path]:
    """Hold the lock of a run and make an empty folder for what is measured of it, which is deleted
    at the end.

    It is in the run folder: the system's folder for temporary files is in memory on many machines.
    """
    with run.locked(), folder_next_to(run.path / "measured") as folder:
        yield folder


def _n_shares(runs: Sequence[Run], n_workers: int) -> int:
    """The number of shares of a run; those with other weights are not divided, because σ_x is
    measured first.
    """
    return 1 if any(run.other_weights for run in runs) else -(-n_workers // len(runs))


def _problem(queue: TrialQueue) -> str:
    """Why the tables of a run were not written; empty if they were."""
    ended = {trial.cell: trial for trial in queue.trials()}
    if _TABLES in ended and ended[_TABLES].state == "finished":
        return ""
    reasons = [trial.facts["reason"] for trial in ended.values() if trial.state == "failed"]
    return str(reasons[-1]) if reasons else "not evaluated"


class ShareQueue(TrialQueue):
    """The trials of one run: its shares if there are several, then its tables."""

    def __init__(self, storage: BaseStorage, number: int, path: Path, n_shares: int) -> None:
        super().__init__(storage, f"cudt/eval-ood/{number}")
        self._path, self._n_shares = path, n_shares

    def cells(self) -> Iterator[tuple[Key, Parameters]]:
        """The shares, and the tables when all shares have ended."""
        keys: list[Key] = [*range(self._n_shares)] if self._n_shares > 1 else []
        ended = {cell for cell, trial in self._live().items() if trial.state.is_finished()}
        if ended.issuperset(keys):
            keys.append(_TABLES)
        return ((key, {}) for key in keys)

    @property
    def n_left(self) -> int:
        """Cells that have not ended, the tables included."""
        n_cells = self._n_shares + 1 if self._n_shares > 1 else 1
        return n_cells - sum(trial.has_ended for trial in self.known())

    def describe(self, trial: Trial) -> str:
        """A trial in one line."""
        share = (
            "" if trial.cell == _TABLES else f", share {int(trial.cell) + 1} of {self._n_shares}"
        )
        return f"{self._path}{share}"

    def outcome(self, trial: Trial) -> str:
        """The result of a finished trial in some words."""
        done = "evaluated" if trial.cell == _TABLES else "measured"
        return f"{done} in {trial.facts.get('seconds', 0.0):.0f} s"


@dataclass(frozen=True)
class ShareSource:
    """Measures shares of a run, and writes its tables."""

    queue: ShareQueue
    name: RunName
    measured: Path | None
    n_shares: int
    request: EvaluationRequest

    def run(self, trial: Trial, report: Report, lease: Lease) -> CellResult:
        # Imported for the first trial, because it imports torch.
        from cudt.evaluation import evaluate

        run, asked, track = self.name.open(), self.request, tracking(report)
        if trial.cell == _TABLES:
            # A run that is divided is locked by the command.
            with run.locked() if self.measured is None else nullcontext():
                evaluate.evaluate_ood(
                    run,
                    asked.grid,
                    asked.device,
                    asked.data_root,
                    track,
                    asked.n_samples,
                    with_exits=asked.with_exits,
                    measured=self.measured,
                )
        elif self.measured is not None:
            parts = evaluate.parts_of(run, asked.grid)
            first, after = (
                len(parts) * (int(trial.cell) + more) // self.n_shares for more in (0, 1)
            )
            evaluate.measure_parts(
                run, parts[first:after], asked.device, asked.data_root, track, self.measured
            )
        return CellResult(0.0, {})

    def facts(self, trial: Trial) -> dict[str, Any]:
        return {}


def tracking(report: Report) -> Track:
    """A `track` function that reports every batch."""

    def track(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
        for number, item in enumerate(items):
            report(CellProgress(number, total, None, "batch"))
            yield item

    return track


def _sources(job: EvaluationJob, storage: BaseStorage) -> list[ShareSource]:
    return [
        ShareSource(
            ShareQueue(storage, number, name.path, job.n_shares),
            name,
            measured,
            job.n_shares,
            job.request,
        )
        for number, (name, measured) in enumerate(job.runs)
    ]


def main(job: EvaluationJob) -> int:
    """What a worker process does: run trials until nothing is left; the exit code (worker.py)."""
    sources = _sources(job, open_patiently(job.storage))
    return work(lambda: sources)
