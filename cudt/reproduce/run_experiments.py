"""Run the experiments of a scale together with all who joined, and write one report about all of
them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from cudt import report
from cudt.report import Report
from cudt.reproduce import generated, needs, stored
from cudt.reproduce import outcome as outcomes
from cudt.reproduce import plan as plans
from cudt.reproduce.experiment_worker import ReproductionJob
from cudt.reproduce.outcome import ExperimentOutcome
from cudt.reproduce.queues import ExperimentQueues
from cudt.reproduce.scale import GENERATED, Reproduction
from cudt.reproduce.stored import ReproduceOptions
from cudt.sweep import recovery, results
from cudt.sweep.display import SweepDisplay
from cudt.sweep.run_sweep import log_folder, resume_command
from cudt.sweep.storage import explain_storage_errors, open_storage
from cudt.sweep.stored import first_study
from cudt.sweep.watch import Crew, run_workers
from cudt.utils import device
from cudt.utils.errors import TrainingInterruptedError, UserError, signal_of
from cudt.utils.worker_processes import worker_environments


def reproduce(
    reproduction: Reproduction,
    options: ReproduceOptions,
    console: Console,
    *,
    only_plan: bool = False,
) -> bool:
    """Print the plan, run it and write the report; returns whether everything was done. The same
    call resumes it.
    """
    refusal = _refusal(reproduction, options)
    try:
        _make_data(reproduction, options, only_plan or bool(refusal))
        if only_plan or not options.join:
            plan = plans.make(reproduction, options)
            console.print(plans.table(plan))
            _print(console, "\n".join(plans.lines(plan, reproduction.scale.machine)))
        if only_plan:
            return True
        if refusal:
            raise UserError(refusal)
        with explain_storage_errors():
            return _Command(reproduction, options, console).run()
    except KeyboardInterrupt as error:
        raise _interrupted(options, signal_of(error)) from None


def _refusal(reproduction: Reproduction, options: ReproduceOptions) -> str:
    """Why the scale is refused on this machine (it would take years without a GPU); empty if it is
    not.
    """
    if (
        not reproduction.scale.needs_gpu
        or options.device == "cpu"
        or device.choose(options.device).type != "cpu"
    ):
        return ""
    return (
        f"scale {reproduction.name} needs a GPU and torch finds none; nothing was run. Use a "
        "machine with one, "
        "or a smaller scale (--scale cpu or smoke; make reproduce-paper SCALE=cpu or smoke), or "
        "run it on "
        "the CPU anyway with --device cpu (make: DEVICE=cpu)"
    )


def _make_data(reproduction: Reproduction, options: ReproduceOptions, only_plan: bool) -> None:
    """Generate the data of generated experiments; `--plan` writes nothing."""
    if not only_plan and any(
        experiment.listed.generated for experiment in reproduction.experiments
    ):
        options.out.mkdir(parents=True, exist_ok=True)
        # Several commands may begin at the same time.
        with FileLock(options.out / f".{GENERATED}.lock"):
            generated.make(options.out / GENERATED)


def _interrupted(options: ReproduceOptions, signal_number: int) -> TrainingInterruptedError:
    return TrainingInterruptedError(
        f"{options.out}: interrupted; run the same command to resume", signal_number
    )


class _Command:
    """One command that takes part in a reproduction, with its workers."""

    def __init__(
        self, reproduction: Reproduction, options: ReproduceOptions, console: Console
    ) -> None:
        self._reproduction, self._options, self._console = reproduction, options, console
        options.out.mkdir(parents=True, exist_ok=True)
        self._storage = open_storage(options.url)
        if not options.join:
            stored.begin(reproduction, self._storage)
        stored.check_folder(self._storage, reproduction, options.out)
        self._queues = [
            ExperimentQueues(one, self._storage, options) for one in reproduction.in_order
        ]
        # All experiments: other machines may have the data that this one lacks.
        for queues in self._queues if not options.join else []:
            queues.begin(retry_failed=options.retry_failed)

    def run(self) -> bool:
        """Run what is left and write the report; returns whether everything was done."""
        missing = [needs.missing(one.experiment, one.options.data_root) for one in self._queues]
        self._work([one for one, items in zip(self._queues, missing, strict=True) if not items])
        found = outcomes.of(self._queues, missing)
        self._report(found)
        return all(outcome.is_done for outcome in found)

    def _work(self, queues: Sequence[ExperimentQueues]) -> None:
        """Let workers run the trials of the experiments whose data are here, and write the tables
        of the sweeps.
        """
        for one in queues:
            results.write_definition(
                one.experiment.sweep, one.experiment.sweep.folder(self._options.out)
            )
        sources = [source for one in queues for source in one.sources]
        recovery.give_back_lost(sources)
        display = SweepDisplay(self._console)

        def looked(ended: set[str], n_failed: int) -> None:
            for one in queues:
                if ended & {study.name for study in one.studies}:
                    self._write_tables(one)

        stopped_by = run_workers(self._crew(queues), sources, display, looked) if sources else 0
        for one in queues:
            self._write_tables(one)
        if stopped_by:
            raise _interrupted(self._options, stopped_by)
        for one in queues:
            for path in one.completions.compare() if one.completions is not None else []:
                _print(self._console, f"completions side by side: {path}")

    def _crew(self, queues: Sequence[ExperimentQueues]) -> Crew:
        options = self._options
        studies = tuple(first_study(one.experiment.sweep) for one in queues)
        root = stored.root_study(self._reproduction)
        job = ReproductionJob(
            options.url, root, studies, options.out, options.device, options.data_root
        )
        environments = worker_environments(options.workers, options.device)
        logs = log_folder(options.out, options.storage)
        return Crew(environments, logs, "cudt.reproduce.experiment_worker:main", job)

    def _write_tables(self, one: ExperimentQueues) -> None:
        sweep = one.experiment.sweep
        folder = sweep.folder(self._options.out)
        results.write(sweep, one.studies, folder, resume_command(folder, one.options))

    def _report(self, found: Sequence[ExperimentOutcome]) -> None:
        """Print the summary, and write the report unless that is left to another command."""
        written = write_report(self._options.out, self._console, only_if_old=self._options.join)
        _print(self._console, "\n".join(outcomes.summary(found)))
        if written is not None:
            if written.verdict:
                self._console.print(written.verdict, highlight=False)
            _print(self._console, f"report: {written.page}\ntable:  {written.table_path}")


def write_report(out: Path, console: Console, *, only_if_old: bool = False) -> Report | None:
    """Write the report about every run below the out folder; None if there is nothing to report.

    `only_if_old` leaves a report alone that has everything in it. Commands that end together write
    one after another.
    """
    lock = out / ".report.lock"
    try:
        with FileLock(lock):
            if only_if_old and _is_new(out):
                return None
            lock.touch()
            made = report.write([out], out / "report")
            # The page's time is when its runs were read: what ended while it was written is not in
            # it.
            began = lock.stat().st_mtime_ns
            os.utime(made.page, ns=(began, began))
    except UserError as error:
        _print(console, f"no report was written: {error}")
        return None
    for warning in made.warnings:
        _print(console, f"warning: {warning}", style="yellow")
    return made


def _is_new(out: Path) -> bool:
    """Whether no table of a run is newer than the report."""
    page = out / "report" / "index.html"
    runs = [path.parent for path in out.glob("*/*/run.json")]
    names = ("run.json", "ood.csv", "exits.csv", "on-*/ood.csv", "completions/*.json")
    tables = [path for run in runs for name in names for path in run.glob(name)]
    # Every command that ends writes completions side by side.
    last = max(
        (path.stat().st_mtime_ns for path in tables if "against" not in path.name), default=0
    )
    return page.is_file() and page.stat().st_mtime_ns > last


def _print(console: Console, text: str, style: str = "") -> None:
    """Print text as it is, without coloured numbers or wrapped paths."""
    console.print(text, style=style, soft_wrap=True, highlight=False)
