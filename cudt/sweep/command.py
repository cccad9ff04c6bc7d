"""`cudt sweep` from beginning to end: start workers, show the trials of all machines, write the
tables.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from optuna.storages import InMemoryStorage
from rich.console import Console

from cudt.models.base import check_model
from cudt.sweep import results
from cudt.sweep.results import Results
from cudt.sweep.search import Sweep
from cudt.sweep.studies import (
    ENDED,
    ArmStudy,
    existing,
    is_of_storage,
    open_storage,
    own_storage,
    studies_of,
    sweeps_in,
)
from cudt.sweep.worker import SweepOptions, main
from cudt.tasks.base import build_task
from cudt.utils.device import choose
from cudt.utils.errors import MachineFaultError, StopRequest, TrainingInterruptedError, UserError
from cudt.utils.text import as_command
from cudt.utils.workers import FAULT, Ended, Workers, environments

#: Seconds between two looks at the trials, and for which an absent storage is waited for.
_INTERVAL, _PATIENCE = 2.0, 300.0
#: Workers that may die one after the other without a trial having ended.
_MOST_DEATHS = 5
#: Columns of the table that is printed at the end.
_PRINTED = (
    *("setting", "arm", "score", "feasible", "runs", "failed", "pruned"),
    *("spent_updates", "spent_seconds", "run"),
)


def run_sweeps(
    sweeps: Sequence[Sweep], folder: Path, options: SweepOptions, console: Console
) -> list[Results]:
    """Run every cell without a result with one pool of workers, together with all who joined, and
    write the tables of each sweep; the folder has the trials and logs.
    """
    for sweep in sweeps:
        check(sweep, options)
    folder.mkdir(parents=True, exist_ok=True)
    # Machines that share the folder must not write into one file.
    logs = folder / "logs" / (socket.gethostname() if options.storage else "")
    url = options.storage or own_storage(folder)
    storage = open_storage(url)
    groups = [studies_of(sweep, storage) for sweep in sweeps]
    for study in [] if options.join else chain(*groups):
        study.enqueue(retry_failed=options.retry_failed)
    watch = _Watch(groups, options.out, console)
    job = ([arms[0].study.study_name for arms in groups], replace(options, storage=url))
    is_left = any(study.n_left for study in chain(*groups))
    each = environments(options.workers, options.device) if is_left else []
    with StopRequest() as stop, Workers(each, logs, main, job) as workers:
        watch.run(workers, stop)
    made = [results.write(arms, options.out) for arms in groups]
    if stop.requested:
        raise TrainingInterruptedError(
            f"{folder}: interrupted; run the same command to resume", stop.signal_number
        )
    return made


def check(sweep: Sweep, options: SweepOptions) -> None:
    """Refuse a score in the wrong direction, and missing data, weights or devices."""
    choose(options.device)
    settings, score = sweep.first_recipe.settings, sweep.search.score
    check_model(settings.model, options.data_root)
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
    """The sweep of a storage that is named, or the only unfinished one."""
    storage = existing(url)
    known = [*sweeps_in(storage).values()]
    chosen = [one for one in known if name in (one.name, one.title)]
    if storage is not None and name is None:
        chosen = [one for one in known if any(arm.n_left for arm in studies_of(one, storage))]
    if len(chosen) != 1:
        problem = "choose one with --search" if chosen else "there is no such unfinished sweep"
        titles = ", ".join(one.title for one in known) or "none"
        raise UserError(f"--storage: {problem}; sweeps: {titles}")
    return chosen[0]


def known_studies(sweeps: Sequence[Sweep], url: str) -> list[list[ArmStudy]]:
    """The studies of each sweep as they are stored, or new ones in memory; begins nothing."""
    storage = existing(url)
    begun = {one.title for one in sweeps_in(storage).values()}
    places = [storage if sweep.title in begun else InMemoryStorage() for sweep in sweeps]
    return [studies_of(sweep, one) for sweep, one in zip(sweeps, places, strict=True) if one]


def plan(sweep: Sweep, options: SweepOptions) -> list[tuple[str, str]]:
    """Every run of a sweep in a line, and its state: finished, failed, pruned, or to do."""
    url = options.storage or own_storage(sweep.folder(options.out))
    rows: list[tuple[str, str]] = []
    for study in known_studies([sweep], url)[0]:
        cells = study.cells()
        for number, listed in enumerate(study.listed):
            settings = cells[number].settings if number in cells else listed
            drawn = "" if settings else f": drawn by {study.arm.sampler}"
            is_done = number in cells and cells[number].state in ENDED
            state = cells[number].state if is_done else "to do"
            rows.append((study.describe(settings) + drawn, state))
    return rows


class _Watch:
    """Shows the trials of all machines and writes the tables until the workers here have ended."""

    def __init__(self, groups: Sequence[Sequence[ArmStudy]], out: Path, console: Console) -> None:
        self._groups, self._out, self._deaths = groups, out, 0
        self._say = partial(console.print, soft_wrap=True, highlight=False)
        self._total = sum(study.budget for study in chain(*groups))
        self._seen = {key for arms in groups for key in self._ended(arms)}
        if self._seen:
            self._say(f"resuming: {len(self._seen)} of {self._total} trials are done")

    def run(self, workers: Workers, stop: StopRequest) -> None:
        """Watch until all workers have ended."""
        answered, is_stopping = time.monotonic(), False
        while workers.n_running:
            for one in workers.wait(_INTERVAL):
                if not stop.requested:
                    self._restart(one, workers)
            try:
                self._look()
                answered = time.monotonic()
            except Exception as error:
                if not is_of_storage(error) or time.monotonic() - answered > _PATIENCE:
                    raise
            if stop.requested and not is_stopping:
                is_stopping = True
                self._say(f"stopping: waiting for {workers.n_running} worker(s) to save")
                workers.stop()
        self._look()

    def _look(self) -> None:
        """Show what has ended since the last look, and write the tables if anything has."""
        for arms in self._groups:
            ended = self._ended(arms)
            new = [key for key in ended if key not in self._seen]
            for key in new:
                self._seen.add(key)
                self._say(f"{len(self._seen)}/{self._total}  {ended[key]}")
            if new:
                self._deaths = 0
                results.write(arms, self._out)

    def _ended(self, arms: Sequence[ArmStudy]) -> dict[tuple[str, int], str]:
        """What to say of each cell that has ended."""
        found = {}
        for study in arms:
            sweep, key = study.sweep, study.study.study_name
            of = f"{sweep.name} · {sweep.recipe_name} · " if len(self._groups) > 1 else ""
            for number, cell in study.cells().items():
                if cell.state in ENDED:
                    said = f"{cell.state}: {cell.facts.get('reason', '')}"
                    if cell.state == "finished":
                        said = f"score {cell.trial.value:.5g}"
                    found[key, number] = f"{of}{study.describe(cell.settings)}  {said}"
        return found

    def _restart(self, ended: Ended, workers: Workers) -> None:
        """Start a worker again that has ended too early; a fault of the machine stops all."""
        if ended.code == FAULT:
            raise MachineFaultError(ended.log.read_text().strip().rpartition("\n")[2])
        if ended.code == 0:
            return
        self._deaths += 1
        self._say(f"a worker ended {ended.how}")
        if self._deaths >= _MOST_DEATHS:
            raise UserError(f"{_MOST_DEATHS} workers have died one after the other, {ended.how}")
        workers.start(ended.worker)


# ---------------------------------------------------------------- what is printed at the end


def best_table(made: Results) -> str:
    """The best run of each arm, and what the arm spent."""
    best = made.best[[*_PRINTED]].rename(columns=lambda name: name.removeprefix("spent_"))
    return best.to_string(index=False, na_rep="", float_format="{:.5g}".format)


def ending(made: Results, out: Path) -> str:
    """What is left to do, where the tables are, and the next command."""
    table, lines = made.folder / "trials_wide.csv", []
    if failed := made.count("failed"):
        lines.append(f"{failed} failed: see the reasons in {table}, retry them with --retry-failed")
    lines.append(f"chosen on validation data; all {made.count('finished')} finished runs: {table}")
    here = [out / run for run in made.best["run"].dropna() if (out / run).is_dir()]
    if 0 < len(here) <= 4:
        lines.append("next: " + as_command("eval-ood", *here))
    return "\n".join(lines)
