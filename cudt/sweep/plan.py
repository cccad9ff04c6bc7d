"""The plan of a sweep (`--plan`): every cell with its state and estimated cost, without running any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import optuna
import torch
from rich.table import Table

from cudt.config.recipe import NamedRecipe
from cudt.runs.find import run_for
from cudt.sweep import cost, startup
from cudt.sweep.definition import Sweep
from cudt.sweep.queue import Trial
from cudt.sweep.run_sweep import SweepOptions, check_score, first_task, open_studies
from cudt.sweep.storage import has_studies, open_storage, own_storage
from cudt.sweep.study import ArmStudy, study_name
from cudt.utils.errors import UserError
from cudt.utils.progress import duration
from cudt.utils.worker_processes import worker_environments

#: States of cells that cost nothing more.
_DONE = ("finished", "failed", "pruned", "damaged")
#: States of cells that a sweep would run.
TO_DO = ("to do", "started")


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a plan."""

    name: str
    state: str
    """finished, failed, pruned, started, refused, damaged or to do."""
    seconds: float | None
    """None if there is no estimate."""


@dataclass(frozen=True)
class SweepPlan:
    """All cells of a sweep."""

    cells: list[PlannedCell]
    problem: str
    """Why there is no estimate; empty if there is one."""
    workers: int
    startup: float = 0.0
    """Seconds of the cells to do that are not computing (startup.py)."""

    @property
    def to_do(self) -> list[PlannedCell]:
        return [cell for cell in self.cells if cell.state in TO_DO]

    def summary(self) -> str:
        done = len(self.cells) - len(self.to_do)
        text = f"{len(self.cells)} trials, {done} done, {len(self.to_do)} to do"
        if self.problem:
            return f"{text}; the cost is unknown: {self.problem}"
        total = sum(cell.seconds or 0.0 for cell in self.to_do) + self.startup
        shared = f", {duration(total / self.workers)} with {self.workers} workers" if self.workers > 1 else ""
        return f"{text}; about {duration(total)} on this machine{shared}"


def make(sweep: Sweep, options: SweepOptions, estimates: dict[str, float] | None = None) -> SweepPlan:
    """Every cell with its estimated cost; `estimates` caches timings for cells, and sweeps, of equal cost."""
    estimates = {} if estimates is None else estimates
    problem = _problem(sweep, options)
    planned = []
    for name, recipe, state in cells(sweep, options):
        if recipe is None or state in _DONE:
            planned.append(PlannedCell(name, state, 0.0))
            continue
        key = f"{cost.cost_key(recipe)} {sweep.gammas}"
        if not problem and key not in estimates:
            try:
                estimates[key] = cost.estimate(recipe, sweep.gammas, options.device, options.data_root)
            except UserError as error:
                problem = str(error)
        planned.append(PlannedCell(name, state, estimates.get(key)))
    made = SweepPlan(planned, problem, options.workers)
    return made if problem else replace(made, startup=startup.seconds(len(made.to_do), options.workers))


def _problem(sweep: Sweep, options: SweepOptions) -> str:
    """Why nothing can be timed (missing data or weights), or empty; a wrong score is an error."""
    try:
        task = first_task(sweep, options)
    except UserError as error:
        return str(error)
    check_score(sweep, task)
    torch.set_num_threads(int(worker_environments(options.workers, options.device)[0]["OMP_NUM_THREADS"]))
    return ""


def cells(sweep: Sweep, options: SweepOptions) -> Iterator[tuple[str, NamedRecipe | None, str]]:
    """The name, recipe and state of every cell; a cell that is not drawn yet has a recipe that it could have."""
    known = {study.name: study.known() for study in known_studies(sweep, options)}
    for study in open_studies(sweep, None):
        yield from _of_study(study, known.get(study.name, []), options.out)


def known_studies(sweep: Sweep, options: SweepOptions) -> list[ArmStudy]:
    """The studies that are stored, with their trials read; creates neither studies nor a storage."""
    url = options.storage or own_storage(sweep.folder(options.out))
    if not has_studies(url):
        return []
    storage = open_storage(url)
    stored = set(optuna.get_all_study_names(storage))
    pairs = [(setting, arm) for setting in sweep.settings for arm in sweep.search.arms]
    studies = [ArmStudy(sweep, *pair, storage) for pair in pairs if study_name(sweep, *pair) in stored]
    for study in studies:
        study.refresh()
    return studies


def _of_study(fresh: ArmStudy, known: list[Trial], out: Path) -> Iterator[tuple[str, NamedRecipe | None, str]]:
    sweep, setting, arm = fresh.sweep, fresh.setting, fresh.arm
    is_tpe = sweep.arm(arm).sampler == "tpe"
    # The other samplers do not depend on results, so their cells can be drawn now.
    trials = [trial for trial in known if trial.parameters] if is_tpe else list(iter(fresh.next, None))
    # By repr, because True == 1 in Python. A finished run may be in the folder of another machine.
    ended = {repr(sorted(trial.parameters.items())): trial.state for trial in known if trial.has_ended}
    for trial in trials:
        try:
            recipe = sweep.recipe(setting, arm, trial.parameters)
        except UserError:
            yield fresh.describe(trial), None, "refused"
            continue
        state = ended.get(repr(sorted(trial.parameters.items()))) or _state(recipe, out)
        yield fresh.describe(trial), recipe, state
    if is_tpe:
        some = sweep.recipe(setting, arm, sweep.first_parameters(arm))
        for _ in range(fresh.budget - len(trials)):
            yield f"{sweep.describe(setting, arm, {})}: to be drawn by tpe", some, "to do"


def _state(recipe: NamedRecipe, out: Path) -> str:
    try:
        status = run_for(recipe, out).info().status
    except UserError:
        return "damaged"
    return "to do" if status is None else "finished" if status == "finished" else "started"


def table(plan: SweepPlan) -> Table:
    """One row per cell, and one for starting: they add up to the total."""
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "trial", "state", "about"):
        rows.add_column(name, justify="right" if name in ("", "about") else "left", overflow="fold")
    for number, cell in enumerate(plan.cells, 1):
        rows.add_row(str(number), cell.name, cell.state, "?" if cell.seconds is None else duration(cell.seconds))
    if plan.startup:
        rows.add_row("", "starting workers, reading data, writing files", "", duration(plan.startup))
    return rows
