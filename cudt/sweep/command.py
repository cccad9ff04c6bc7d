"""`cudt sweep` from beginning to end: start workers, show the trials of all machines, write the
tables.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from optuna.storages import InMemoryStorage
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cudt.models.base import check_model
from cudt.runs.run import run_for
from cudt.sweep import results
from cudt.sweep.definition import Sweep
from cudt.sweep.results import Results
from cudt.sweep.storage import (
    existing,
    is_of_storage,
    open_storage,
    own_storage,
    sweeps_in,
    without_password,
)
from cudt.sweep.studies import ENDED, ArmStudy, Cell, studies_of, study_name
from cudt.sweep.worker import RESTART, SweepOptions, main
from cudt.tasks.base import build_task
from cudt.utils.device import choose
from cudt.utils.errors import MachineFaultError, StopRequest, TrainingInterruptedError, UserError
from cudt.utils.text import as_command
from cudt.utils.workers import FAULT, Ended, Workers, environments

#: Seconds between two looks at the trials, and for which an absent storage is waited for.
_INTERVAL, _PATIENCE = 1.0, 300.0
#: Workers that may die one after the other without a trial having ended.
_MOST_DEATHS = 5
#: Columns of the table that is printed at the end, if best.csv has them.
_PRINTED = [
    *("setting", "arm", "score", "feasible", "runs", "failed", "pruned"),
    *("spent_updates", "spent_seconds", "run"),
]


def run_sweep(sweep: Sweep, options: SweepOptions, console: Console) -> Results:
    """Run every cell without a result, together with all who joined, and write the tables."""
    folder, logs = sweep.folder(options.out), sweep.folder(options.out) / "logs"
    check(sweep, options)
    folder.mkdir(parents=True, exist_ok=True)
    if options.storage is not None:
        # Machines that share the folder must not write into one file.
        logs /= socket.gethostname()
    url = options.storage or own_storage(folder)
    studies = studies_of(sweep, open_storage(url, options.heartbeat))
    for study in [] if options.join else studies:
        study.enqueue(retry_failed=options.retry_failed)
    watch = _Watch(sweep, studies, folder, console)
    job = (studies[0].study.study_name, replace(options, storage=url))
    each = environments(options.workers, options.device)
    with StopRequest() as stop, Workers(each, logs, main, job) as workers, watch.progress:
        watch.run(workers, stop)
    made = watch.write()
    if stop.requested:
        raise TrainingInterruptedError(
            f"{folder}: interrupted; run the same command to resume", stop.signal_number
        )
    return made


def check(sweep: Sweep, options: SweepOptions) -> None:
    """Refuse a score in the wrong direction, and missing data, weights or devices."""
    choose(options.device)
    settings, score = sweep.first_recipe.settings, sweep.search.score
    check_model(settings.model, settings.task, options.data_root)
    task = build_task(settings.task, options.data_root, settings.model.tokenizer_source)
    is_higher_better = task.higher_is_better and score.measure != "loss"
    right = "maximize" if is_higher_better else "minimize"
    if score.direction != right:
        measured = "a loss" if score.measure == "loss" else task.metric_name
        raise UserError(
            f"search {sweep.name}: score.direction must be '{right}' for {measured}, got "
            f"'{score.direction}'"
        )


def find(url: str, name: str | None) -> Sweep:
    """The unfinished sweep of a storage; with several, the one that is named."""
    known = sweeps_in(storage := existing(url))
    chosen = [
        one
        for one in known.values()
        if name in (one.name, one.title)
        or (name is None and storage and any(arm.n_left for arm in studies_of(one, storage)))
    ]
    if len(chosen) != 1:
        problem = "choose one with --search" if chosen else "there is no such unfinished sweep"
        titles = ", ".join(one.title for one in known.values()) or "none"
        raise UserError(f"{without_password(url)}: {problem}; sweeps: {titles}")
    return chosen[0]


class _Watch:
    """Shows the trials of all machines and writes the tables until the workers here have ended."""

    def __init__(
        self, sweep: Sweep, studies: Sequence[ArmStudy], folder: Path, console: Console
    ) -> None:
        self.write = partial(results.write, sweep, studies, folder)
        self._studies = studies
        self._total = sum(study.budget for study in studies)
        self._seen = {key for key, _, _ in self._ended()}
        columns = (TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        is_live = console.is_terminal and not console.is_dumb_terminal
        self.progress = Progress(*columns, console=console, transient=True, disable=not is_live)
        self._bar = self.progress.add_task("", total=self._total, completed=len(self._seen))
        self._deaths = 0
        if self._seen:
            self._line(f"resuming: {len(self._seen)} of {self._total} trials are done")

    def run(self, workers: Workers, stop: StopRequest) -> None:
        """Watch until all workers have ended."""
        answered, is_stopping = time.monotonic(), False
        while workers.n_running:
            for one in workers.wait(_INTERVAL):
                self._handle(one, workers, is_stopping=stop.requested)
            try:
                self._look()
                answered = time.monotonic()
            except Exception as error:
                if not is_of_storage(error) or time.monotonic() - answered > _PATIENCE:
                    raise
            if stop.requested and not is_stopping:
                is_stopping = True
                self._line(f"stopping: waiting for {workers.n_running} worker(s) to save")
                workers.stop()
        self._look()

    def _look(self) -> None:
        """Show what has ended since the last look, and write the tables if anything has."""
        new = [one for one in self._ended() if one[0] not in self._seen]
        for key, study, cell in new:
            self._seen.add(key)
            self._deaths, said = 0, str(cell.facts.get("reason", ""))
            if cell.state == "finished":
                said = f"score {cell.trial.value:.5g}"
            count = f"{len(self._seen):>{len(str(self._total))}}/{self._total}"
            failed = "failed: " if cell.state == "failed" else ""
            self._line(f"{count}  {study.describe(cell.settings)}  {failed}{said}")
        self.progress.update(self._bar, completed=len(self._seen))
        if new:
            self.write()

    def _ended(self) -> Iterator[tuple[tuple[str, int], ArmStudy, Cell]]:
        for study in self._studies:
            for number, cell in study.cells().items():
                if cell.state in ENDED:
                    yield (study.study.study_name, number), study, cell

    def _handle(self, ended: Ended, workers: Workers, *, is_stopping: bool) -> None:
        """Start a worker again that has ended too early; a fault of the machine stops all."""
        if ended.code == FAULT:
            raise MachineFaultError(ended.log.read_text().strip().rpartition("\n")[2])
        if ended.code == 0 or is_stopping:
            return
        if ended.code != RESTART:
            self._deaths += 1
            self._line(f"a worker ended {ended.how}; its trial is repeated in two minutes")
        if self._deaths >= _MOST_DEATHS:
            raise UserError(f"{_MOST_DEATHS} workers have died one after the other, {ended.how}")
        workers.start(ended.worker)

    def _line(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True, highlight=False)


# ---------------------------------------------------------------- the plan


def plan(sweep: Sweep, options: SweepOptions) -> list[tuple[str, str]]:
    """Every run of a sweep in a line, and its state: finished, failed, pruned, started or to do."""
    rows = []
    for study in known_studies(sweep, options):
        cells = study.cells()
        for number, own in enumerate(study.listed()):
            cell = cells.get(number)
            settings = own if cell is None else cell.settings or own
            if settings is None:
                rows.append((f"{study.describe(None)}: drawn by {study.arm.sampler}", "to do"))
                continue
            state: str | None = cell.state if cell is not None else None
            if state not in ENDED:
                recipe = sweep.recipe(study.setting, study.name, settings)
                status = run_for(recipe, options.out).info().status
                state = {None: "to do", "finished": "finished"}.get(status, "started")
            rows.append((study.describe(settings), str(state)))
    return rows


def known_studies(sweep: Sweep, options: SweepOptions) -> list[ArmStudy]:
    """The studies as they are stored, or new ones in memory; begins nothing."""
    storage = existing(options.storage or own_storage(sweep.folder(options.out)))
    first = study_name(sweep, sweep.settings[0], next(iter(sweep.search.arms)))
    is_begun = storage is not None and first in sweeps_in(storage)
    return studies_of(sweep, storage if storage and is_begun else InMemoryStorage())


# ---------------------------------------------------------------- what is printed at the end


def best_table(made: Results) -> Table:
    """The best run of each arm, and what the arm spent."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    columns = [one for one in _PRINTED if one in made.best and made.best[one].astype(str).any()]
    for name in columns:
        table.add_column(name.removeprefix("spent_"), overflow="fold")
    for row in made.best[columns].astype(object).fillna("").to_dict("records"):
        words = [f"{one:.5g}" if isinstance(one, float) else str(one) for one in row.values()]
        table.add_row(*words)
    return table


def ending(made: Results, out: Path) -> str:
    """What is left to do, where the tables are, and the next command."""
    table, why = made.folder / "trials_wide.csv", made.sweep.search.unequal_budgets
    lines = [] if why is None else [f"the arms have different budgets: {why}"]
    if made.left:
        lines.append(f"{made.left} trials are left; run the same command to resume")
    if failed := made.count("failed"):
        lines.append(f"{failed} failed: see the reasons in {table}, retry them with --retry-failed")
    lines.append(f"chosen on validation data; all {made.count('finished')} finished runs: {table}")
    here = [out / run for run in made.best["run"].dropna() if (out / run).is_dir()]
    if 0 < len(here) <= 4:
        lines.append("next: " + as_command("eval-ood", *here))
    return "\n".join(lines)
