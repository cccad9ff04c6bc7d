"""The plan of a sweep (`--plan`): every cell with its state, without running any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import optuna
from rich.table import Table

from cudt.config.recipe import NamedRecipe
from cudt.runs.run import run_for
from cudt.sweep.definition import Sweep
from cudt.sweep.queue import Trial
from cudt.sweep.run_sweep import SweepOptions, check_score, first_task, open_studies
from cudt.sweep.storage import has_studies, open_storage, own_storage
from cudt.sweep.study import ArmStudy, study_name
from cudt.utils.errors import UserError

#: States of cells that a sweep would run.
TO_DO = ("to do", "started")


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a plan."""

    name: str
    state: str
    """finished, failed, pruned, started, refused, damaged or to do."""


@dataclass(frozen=True)
class SweepPlan:
    """All cells of a sweep."""

    cells: list[PlannedCell]
    problem: str
    """Which data or weights are missing, and how to get them; empty if none are."""

    @property
    def n_left(self) -> int:
        """Cells that a sweep would run."""
        return sum(cell.state in TO_DO for cell in self.cells)

    def summary(self) -> str:
        """How many trials there are, and what is missing."""
        left = self.n_left
        counts = f"{len(self.cells)} trials, {len(self.cells) - left} done, {left} to do"
        return f"{counts}\nmissing: {self.problem}" if self.problem else counts


def make(sweep: Sweep, options: SweepOptions) -> SweepPlan:
    """Every cell of a sweep, and what it is missing; a wrong score is an error."""
    try:
        task = first_task(sweep, options)
    except UserError as error:
        return SweepPlan(cells(sweep, options), str(error))
    check_score(sweep, task)
    return SweepPlan(cells(sweep, options), "")


def cells(sweep: Sweep, options: SweepOptions) -> list[PlannedCell]:
    """The name and state of every cell."""
    known = {study.name: study.known() for study in known_studies(sweep, options)}
    studies = open_studies(sweep, None)
    return [
        cell
        for study in studies
        for cell in _of_study(study, known.get(study.name, []), options.out)
    ]


def known_studies(sweep: Sweep, options: SweepOptions) -> list[ArmStudy]:
    """The studies that are stored, with their trials read; creates neither studies nor a
    storage.
    """
    url = options.storage or own_storage(sweep.folder(options.out))
    if not has_studies(url):
        return []
    storage = open_storage(url)
    stored = set(optuna.get_all_study_names(storage))
    pairs = [(setting, arm) for setting in sweep.settings for arm in sweep.search.arms]
    studies = [
        ArmStudy(sweep, *pair, storage) for pair in pairs if study_name(sweep, *pair) in stored
    ]
    for study in studies:
        study.refresh()
    return studies


def _of_study(fresh: ArmStudy, known: list[Trial], out: Path) -> Iterator[PlannedCell]:
    sweep, setting, arm = fresh.sweep, fresh.setting, fresh.arm
    is_tpe = sweep.arm(arm).sampler == "tpe"
    # The other samplers do not depend on results, so their cells can be drawn now.
    trials = (
        [trial for trial in known if trial.parameters] if is_tpe else list(iter(fresh.next, None))
    )
    # By repr, because True == 1 in Python. A finished run may be in the folder of another machine.
    ended = {
        repr(sorted(trial.parameters.items())): trial.state for trial in known if trial.has_ended
    }
    for trial in trials:
        try:
            recipe = sweep.recipe(setting, arm, trial.parameters)
        except UserError:
            yield PlannedCell(fresh.describe(trial), "refused")
            continue
        state = ended.get(repr(sorted(trial.parameters.items()))) or _state(recipe, out)
        yield PlannedCell(fresh.describe(trial), state)
    if is_tpe:
        for _ in range(fresh.budget - len(trials)):
            yield PlannedCell(f"{sweep.describe(setting, arm, {})}: to be drawn by tpe", "to do")


def _state(recipe: NamedRecipe, out: Path) -> str:
    try:
        status = run_for(recipe, out).info().status
    except UserError:
        return "damaged"
    return "to do" if status is None else "finished" if status == "finished" else "started"


def table(plan: SweepPlan) -> Table:
    """One row per cell."""
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "trial", "state"):
        rows.add_column(name, justify="left" if name else "right", overflow="fold")
    for number, cell in enumerate(plan.cells, 1):
        rows.add_row(str(number), cell.name, cell.state)
    return rows
