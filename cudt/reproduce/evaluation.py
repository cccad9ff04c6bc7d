"""Which runs of a sweep are evaluated and answer instructions, and what is left to do of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd

from cudt.config import other_data
from cudt.evaluation import evaluate
from cudt.evaluation.evaluate import Grid
from cudt.evaluation.generate import Decoding, Request
from cudt.reproduce import needs
from cudt.reproduce.scale import Experiment
from cudt.runs.run import Run, open_run
from cudt.sweep.results import best_of_arms
from cudt.utils.errors import UserError

#: The best run of each arm in each setting, all runs, or none.
Which = Literal["best", "all", "none"]


def chosen(experiment: Experiment, trials: pd.DataFrame, which: Which | None = None) -> list[str]:
    """The folders of the runs to evaluate, below the folder of the reproduction.

    `which` is what the experiment evaluates by default.
    """
    which = which or experiment.listed.evaluate
    if which == "none" or trials.empty:
        return []
    is_best = which == "best"
    rows = best_of_arms(trials, experiment.sweep) if is_best else trials
    finished = rows[rows["score"].notna()]
    return list(dict.fromkeys(finished["run"]))


def n_evaluations(experiment: Experiment) -> int:
    """The number of runs that an experiment evaluates."""
    sweep, which = experiment.sweep, experiment.listed.evaluate
    of_arm = {"best": lambda arm: 1, "all": sweep.budget, "none": lambda arm: 0}[which]
    return len(sweep.settings) * sum(map(of_arm, sweep.search.arms))


def grid_of(experiment: Experiment) -> Grid:
    return Grid(
        perturbations=[*experiment.listed.perturbations], noise_seeds=experiment.listed.noise_seeds
    )


@dataclass(frozen=True)
class RunEvaluation:
    """What an experiment asks for about one run on one data set."""

    run: Run
    grid: Grid
    n_samples: int
    with_exits: bool

    @property
    def is_done(self) -> bool:
        """Whether the tables are complete."""
        return not evaluate.missing(self.run, self.grid, self.n_samples, with_exits=self.with_exits)


def evaluations_of(
    experiment: Experiment, path: Path, data_root: Path | None
) -> Iterator[RunEvaluation]:
    """The evaluation of a run on its own test data, then on other data that are here."""
    run, listed, grid = open_run(path), experiment.listed, grid_of(experiment)
    yield RunEvaluation(run, grid, listed.samples, listed.exits)
    for name in needs.available_other(experiment, data_root):
        # Pictures are of the run's own data.
        other = replace(grid, on=other_data.named(run.recipe.settings.task, name, "on"))
        yield RunEvaluation(run, other, n_samples=0, with_exits=listed.exits)


def is_evaluated(experiment: Experiment, path: Path, data_root: Path | None = None) -> bool:
    """Whether the tables of a run are complete; False for a missing or damaged run, whose trial
    then says why.
    """
    try:
        asked = evaluations_of(experiment, path, data_root)
        return all(one.is_done for one in asked)
    except UserError:
        return False


def requests(experiment: Experiment, data_root: Path | None) -> list[Request]:
    """The completions that an experiment asks for; none if the instructions file is missing."""
    asked = experiment.listed.completions
    if asked is None or not (file := needs.instructions_file(asked, data_root)).is_file():
        return []
    size, most = asked.batch_size, asked.max_new_tokens
    return [Request(file, Decoding(gamma, 0, most, size), asked.limit) for gamma in asked.gammas]
