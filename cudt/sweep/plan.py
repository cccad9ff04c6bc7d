"""What a sweep would do, and what it would cost, without doing any of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import optuna
import torch
from rich.table import Table

from cudt.config.recipe import NamedRecipe
from cudt.runs.run import run_for
from cudt.sweep import cost
from cudt.sweep.conduct import Options, check_score, environments, first_task, open_studies
from cudt.sweep.definition import Sweep
from cudt.sweep.display import duration
from cudt.sweep.storage import is_there, open_storage, own_storage
from cudt.sweep.study import ArmStudy, Trial, study_name
from cudt.utils.errors import UserError

#: States of cells that cost nothing any more.
_DONE = ("finished", "failed", "damaged")


@dataclass(frozen=True)
class Planned:
    """A cell to come, or one that is there."""

    name: str
    state: str
    """finished, failed, begun, refused, damaged or to do."""
    seconds: float | None
    """None where it could not be estimated."""


@dataclass(frozen=True)
class Plan:
    """All cells, and why they have no estimate, where they have none."""

    cells: list[Planned]
    problem: str
    workers: int

    @property
    def to_do(self) -> list[Planned]:
        return [cell for cell in self.cells if cell.state in ("to do", "begun")]

    def summary(self) -> str:
        done = len(self.cells) - len(self.to_do)
        text = f"{len(self.cells)} cells, {done} done, {len(self.to_do)} to do"
        if self.problem:
            return f"{text}; their cost is unknown: {self.problem}"
        total = sum(cell.seconds or 0.0 for cell in self.to_do)
        shared = f", {duration(total / self.workers)} with {self.workers} workers" if self.workers > 1 else ""
        return f"{text}; about {duration(total)} on this machine{shared}"


def make(sweep: Sweep, options: Options, estimates: dict[str, float] | None = None) -> Plan:
    """Every cell with its estimated cost; `estimates` keeps what was timed, for sweeps whose cells cost the same."""
    estimates = {} if estimates is None else estimates
    problem = _problem(sweep, options)
    planned = []
    for name, recipe, state in cells(sweep, options):
        if recipe is None or state in _DONE:
            planned.append(Planned(name, state, 0.0))
            continue
        alike = f"{cost.like(recipe)} {sweep.gammas}"
        if not problem and alike not in estimates:
            try:
                estimates[alike] = cost.estimate(recipe, sweep.gammas, options.device, options.data_root)
            except UserError as error:
                problem = str(error)
        planned.append(Planned(name, state, estimates.get(alike)))
    return Plan(planned, problem, options.workers)


def _problem(sweep: Sweep, options: Options) -> str:
    """Why nothing can be timed: data or weights that are not there. A search that is wrong is refused."""
    try:
        task = first_task(sweep, options)
    except UserError as error:
        return str(error)
    check_score(sweep, task)
    torch.set_num_threads(int(environments(options)[0]["OMP_NUM_THREADS"]))
    return ""


def cells(sweep: Sweep, options: Options) -> Iterator[tuple[str, NamedRecipe | None, str]]:
    """The name, recipe and state of every cell; of those that are yet to be drawn, a recipe that they might have."""
    known = _known(sweep, options)
    for study in open_studies(sweep, None):
        yield from _of_study(study, known.get(study.name, []), options.out)


def _known(sweep: Sweep, options: Options) -> dict[str, list[Trial]]:
    """The trials that are there, by the study's name; makes no study, nor a storage."""
    url = options.storage or own_storage(sweep.folder(options.out))
    if not is_there(url):
        return {}
    storage = open_storage(url)
    there = set(optuna.get_all_study_names(storage))
    places = [(setting, arm) for setting in sweep.settings for arm in sweep.search.arms]
    studies = [ArmStudy(sweep, *place, storage) for place in places if study_name(sweep, *place) in there]
    return {study.name: study.trials() for study in studies}


def _of_study(fresh: ArmStudy, known: list[Trial], out: Path) -> Iterator[tuple[str, NamedRecipe | None, str]]:
    sweep, setting, arm = fresh.sweep, fresh.setting, fresh.arm
    if sweep.arm(arm).sampler == "tpe":
        trials = known
    else:
        # What is drawn does not depend on results, so it can be drawn now.
        fresh.take_over(retry_failed=False)
        trials = list(iter(fresh.next, None))
    failed = [trial.parameters for trial in known if trial.state == "failed"]
    for trial in trials:
        try:
            recipe = sweep.recipe(setting, arm, trial.parameters)
        except UserError:
            yield fresh.describe(trial), None, "refused"
            continue
        yield fresh.describe(trial), recipe, "failed" if trial.parameters in failed else _state(recipe, out)
    if sweep.arm(arm).sampler == "tpe":
        some = sweep.recipe(setting, arm, sweep.first(arm))
        for _ in range(fresh.budget - len(trials)):
            yield f"{sweep.describe(setting, arm, {})}: to be drawn by tpe", some, "to do"


def _state(recipe: NamedRecipe, out: Path) -> str:
    try:
        status = run_for(recipe, out).info().status
    except UserError:
        return "damaged"
    return "to do" if status is None else "finished" if status == "finished" else "begun"


def table(plan: Plan) -> Table:
    """A row for each cell."""
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "cell", "state", "about"):
        rows.add_column(name, justify="right" if name in ("", "about") else "left", overflow="fold")
    for number, cell in enumerate(plan.cells, 1):
        rows.add_row(str(number), cell.name, cell.state, "?" if cell.seconds is None else duration(cell.seconds))
    return rows
