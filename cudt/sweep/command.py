"""`cudt sweep` from beginning to end: start workers, show the trials of all machines, write the
tables.
"""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from optuna.storages import InMemoryStorage
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cudt.config.recipe import NamedRecipe
from cudt.models.needs import check_model
from cudt.runs.find import run_for
from cudt.sweep import results
from cudt.sweep.definition import Sweep
from cudt.sweep.results import Results
from cudt.sweep.search import Settings
from cudt.sweep.storage import (
    HEARTBEAT,
    STORAGE_ERRORS,
    open_storage,
    own_storage,
    sweeps_in,
    without_password,
)
from cudt.sweep.studies import ENDED, ArmStudy, studies_of, study_name
from cudt.sweep.worker import RESTART, AfterEpoch, Job, Outcome, main
from cudt.tasks.base import build_task
from cudt.utils.device import DeviceName, choose
from cudt.utils.errors import MachineFaultError, TrainingInterruptedError, UserError
from cudt.utils.interrupt import StopRequest
from cudt.utils.workers import FAULT, Ended, Workers, environments

#: Seconds between two looks at the trials, and for which an absent storage is waited for.
_INTERVAL, _PATIENCE = 1.0, 300.0
#: Workers that may die one after the other without a trial having ended.
_MOST_DEATHS = 5


@dataclass(frozen=True)
class SweepOptions:
    """The options of `cudt sweep`; none of them changes a result."""

    out: Path
    device: DeviceName = "auto"
    data_root: Path | None = None
    workers: int = 1
    retry_failed: bool = False
    storage: str | None = None
    """The URL of a database; by default, a SQLite file in the sweep's folder."""
    join: bool = False
    """Take part in a sweep as it is, without enqueueing anything."""
    trackers: tuple[str, ...] = ()
    cell: Callable[[NamedRecipe, ArmStudy, Job, AfterEpoch | None], Outcome] | None = None
    """Trains and scores a run, instead of `cudt.sweep.worker.run_cell`."""
    heartbeat: int = HEARTBEAT

    def url(self, sweep: Sweep) -> str:
        return self.storage or own_storage(sweep.folder(self.out))


def run_sweep(sweep: Sweep, options: SweepOptions, console: Console) -> Results:
    """Run every cell without a result, together with all who joined, and write the tables."""
    folder, url = sweep.folder(options.out), options.url(sweep)
    check(sweep, options)
    folder.mkdir(parents=True, exist_ok=True)
    studies = studies_of(sweep, open_storage(url, options.heartbeat))
    if not options.join:
        for study in studies:
            study.enqueue(retry_failed=options.retry_failed)
    job = Job(
        url,
        studies[0].study.study_name,
        options.out,
        options.device,
        options.data_root,
        options.trackers,
        options.cell,
        options.heartbeat,
    )
    # Machines that share the folder must not write into one file.
    logs = folder / "logs" / (socket.gethostname() if options.storage else "")
    watch = _Watch(sweep, studies, folder, resume_command(folder, options), console)
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
    higher_is_better = task.higher_is_better and score.measure != "loss"
    if (score.direction == "maximize") != higher_is_better:
        measured = "a loss" if score.measure == "loss" else task.metric_name
        right = "maximize" if higher_is_better else "minimize"
        raise UserError(
            f"search {sweep.name}: score.direction must be '{right}' for {measured}, got "
            f"'{score.direction}'"
        )


def resume_command(folder: Path, options: SweepOptions) -> str:
    """The command that resumes a sweep, without a password."""
    words = ["cudt", "sweep", "--search", str(folder / "sweep.yaml"), "--out", str(options.out)]
    if options.storage is not None:
        words += ["--storage", without_password(options.storage)]
    if options.data_root is not None:
        words += ["--data-root", str(options.data_root)]
    if options.trackers:
        words += ["--track", ",".join(options.trackers)]
    return shlex.join(words)


def find(url: str, name: str | None) -> Sweep:
    """The unfinished sweep of a storage; with several, the one that is named."""
    known, storage = sweeps_in(url), open_storage(url)
    chosen = [
        one
        for one in known.values()
        if name in (one.name, one.title)
        or (name is None and any(study.n_left for study in studies_of(one, storage)))
    ]
    if len(chosen) != 1:
        problem = "choose one with --search" if chosen else "there is no such unfinished sweep"
        titles = ", ".join(one.title for one in known.values()) or "none"
        raise UserError(f"{without_password(url)}: {problem}; sweeps: {titles}")
    return chosen[0]


class _Watch:
    """Shows the trials of all machines, and writes the tables, until the workers here have
    ended.
    """

    def __init__(
        self,
        sweep: Sweep,
        studies: Sequence[ArmStudy],
        folder: Path,
        command: str,
        console: Console,
    ) -> None:
        self._sweep, self._studies, self._folder = sweep, studies, folder
        self._command, self._console = command, console
        self._total = sum(study.budget for study in studies)
        self._seen = {key for key, _ in self._ended()}
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        is_live = console.is_terminal and not console.is_dumb_terminal
        self.progress = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not is_live
        )
        self._task = self.progress.add_task("trials", total=self._total, completed=len(self._seen))
        self._deaths = 0
        if self._seen:
            self._line(f"resuming: {len(self._seen)} of {self._total} trials are done")
        arms = sweep.search.arms
        pruning = [name for name, arm in arms.items() if arm.pruner is not None]
        if 0 < len(pruning) < len(arms):
            self._line(
                f"warning: only {' and '.join(pruning)} prunes: budgets count runs, so compare the "
                "arms by the updates that they spent"
            )

    def run(self, workers: Workers, stop: StopRequest) -> None:
        """Watch until all workers have ended."""
        answered, is_stopping = time.monotonic(), False
        while workers.n_running:
            for one in workers.wait(_INTERVAL):
                self._handle(one, workers, is_stopping=stop.requested)
            try:
                self.look()
                answered = time.monotonic()
            except STORAGE_ERRORS as error:
                if time.monotonic() - answered > _PATIENCE:
                    raise MachineFaultError(f"the storage fails: {error}") from error
            if stop.requested and not is_stopping:
                is_stopping = True
                n = workers.n_running
                self._line(f"stopping: waiting for {n} worker{'s' * (n != 1)} to save")
                workers.stop()
        with suppress(*STORAGE_ERRORS):
            self.look()

    def look(self) -> None:
        """Show what has ended since the last look, and write the tables if anything has."""
        new = [(key, line) for key, line in self._ended() if key not in self._seen]
        for key, line in new:
            self._seen.add(key)
            self._deaths = 0
            width = len(str(self._total))
            self._line(f"{len(self._seen):>{width}}/{self._total}  {line}")
        self.progress.update(self._task, completed=len(self._seen))
        if new:
            self.write()

    def write(self) -> Results:
        return results.write(self._sweep, self._studies, self._folder, self._command)

    def _ended(self) -> Iterator[tuple[tuple[str, int], str]]:
        """Each cell that has ended, and a line about it."""
        for study in self._studies:
            for number, cell in study.cells().items():
                if cell.state in ENDED:
                    said = cell.facts.get("reason", "")
                    if cell.state == "finished":
                        said = f"score {cell.trial.value:.5g}"
                    elif cell.state == "failed":
                        said = f"failed: {said}"
                    line = f"{study.describe(cell.settings)}  {said}"
                    yield (study.study.study_name, number), line

    def _handle(self, ended: Ended, workers: Workers, *, is_stopping: bool) -> None:
        """Start a worker again that has ended too early; a fault of the machine stops all."""
        if ended.code == FAULT:
            raise MachineFaultError(ended.last_words)
        if ended.code == 0 or is_stopping:
            return
        if ended.code != RESTART:
            self._deaths += 1
            self._line(f"a worker ended {ended.how}; its trial is repeated in two minutes")
        if self._deaths >= _MOST_DEATHS:
            raise UserError(
                f"{self._deaths} workers ended one after the other, the last {ended.how}"
            )
        workers.start(ended.worker)

    def _line(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True, highlight=False)


# ---------------------------------------------------------------- the plan


def plan(sweep: Sweep, options: SweepOptions) -> list[tuple[str, str]]:
    """Every run of a sweep in a line, and its state: finished, failed, pruned, started or to do."""
    rows = []
    for study in known_studies(sweep, options):
        cells = study.cells()
        for number, listed in enumerate(study.listed()):
            cell = cells.get(number)
            own = listed if cell is None or cell.settings is None else cell.settings
            is_over = cell is not None and cell.state in ENDED
            state = cell.state if cell and is_over else _run_state(study, own, options.out)
            drawn = f": drawn by {study.arm.sampler}" if own is None else ""
            rows.append((study.describe(own) + drawn, state))
    return rows


def known_studies(sweep: Sweep, options: SweepOptions) -> list[ArmStudy]:
    """The studies as they are stored, or new ones in memory; begins nothing."""
    url, first = options.url(sweep), next(iter(sweep.search.arms))
    is_begun = study_name(sweep, sweep.settings[0], first) in sweeps_in(url)
    return studies_of(sweep, open_storage(url) if is_begun else InMemoryStorage())


def _run_state(study: ArmStudy, own: Settings | None, out: Path) -> str:
    """How far the run of a cell is that has not ended."""
    if own is None:
        return "to do"
    try:
        run = run_for(study.sweep.recipe(study.setting, study.name, own), out)
        status = run.info().status
    except UserError:
        return "refused"
    return "to do" if status is None else "finished" if status == "finished" else "started"


# ---------------------------------------------------------------- what is printed at the end


def best_table(made: Results) -> Table:
    """The best score of each arm, and what the arm spent."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    names = ["setting", "arm"] if made.sweep.search.settings else ["arm"]
    numbers = ["score", "feasible", "runs", "failed", "pruned", "spent_updates", "spent_seconds"]
    columns = names + [name for name in numbers if name in made.best]
    for name in columns:
        justify: Literal["left", "right"] = "left" if name in names else "right"
        table.add_column(name.removeprefix("spent_"), justify=justify, overflow="fold")
    for row in made.best.to_dict("records"):
        row["feasible"] = "yes" if row["feasible"] else "no"
        if not row["runs"]:
            row["score"] = row["feasible"] = ""
        words = [f"{row[one]:.5g}" if isinstance(row[one], float) else row[one] for one in columns]
        table.add_row(*map(str, words))
    return table


def ending(made: Results, out: Path) -> str:
    """The best runs, where the tables are, and the next command."""
    best, search = made.best[made.best["runs"] > 0], made.sweep.search
    lines = [_best_line(made, row, out) for _, row in best.iterrows()]
    if search.unequal_budgets is not None:
        lines.append(f"the arms have different budgets: {search.unequal_budgets}")
    if made.count("pruned"):
        spent = made.best.groupby("arm", sort=False)["spent_updates"].sum()
        updates = ", ".join(f"{arm} {int(count):,}" for arm, count in spent.items())
        lines.append(f"{made.count('pruned')} runs were pruned; updates by arm: {updates}")
    if made.left:
        lines.append(f"{made.left} trials are left; run the same command to resume")
    table = made.folder / "trials_wide.csv"
    if failed := made.count("failed"):
        lines.append(f"{failed} failed: see the reasons in {table}, retry them with --retry-failed")
    lines.append(f"chosen on validation data; all {made.count('finished')} finished runs: {table}")
    here = [str(out / run) for run in best["run"] if (out / run).is_dir()]
    if 0 < len(here) <= 4:
        lines.append("next: " + shlex.join(["cudt", "eval-ood", *here]))
    return "\n".join(lines)


def _best_line(made: Results, row: Any, out: Path) -> str:
    study, own = made.chosen(row)
    return f"best of {study.describe(own)}  {out / row['run']}"
