"""Evaluations and completions as trials: which runs of a sweep they are of, and how one is made.

An evaluation becomes a trial when its sweep has ended, which decides the best run of each arm; if
all runs are evaluated, when the run has ended. Completions take hours for a large model, so those
of a run at each γ are a trial.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from optuna.storages import BaseStorage

from cudt.config import other_data
from cudt.evaluation import evaluate, generate
from cudt.evaluation.evaluate import Grid
from cudt.evaluation.generate import Decoding, Request
from cudt.method.objectives import Objective, objective_class
from cudt.reproduce import needs
from cudt.reproduce.scale import Experiment
from cudt.runs.run import Run, open_run
from cudt.sweep.definition import Parameters
from cudt.sweep.lease import Lease
from cudt.sweep.messages import CellProgress, CellResult
from cudt.sweep.queue import Key, Trial, TrialQueue
from cudt.sweep.source import Report, RunOptions
from cudt.sweep.study import ArmStudy
from cudt.utils.errors import UserError
from cudt.utils.text import Track

#: The best run of each arm in each setting, all runs, or none.
Which = Literal["best", "all", "none"]

# ---------------------------------------------------------------- which runs


@dataclass(frozen=True)
class ChosenRun:
    """A run to evaluate."""

    path: str
    """Below the folder of the reproduction."""
    is_best: bool
    """Whether it is the best run of an arm in a setting."""


def chosen(
    experiment: Experiment, arms: Sequence[ArmStudy], which: Which | None = None
) -> list[ChosenRun]:
    """The runs to evaluate that are known by now, in the order of their trials, each once.

    `which` is what the experiment evaluates by default.
    """
    which = which or experiment.listed.evaluate
    is_over = all(arm.is_done for arm in arms)
    if which == "none" or (which == "best" and not is_over):
        return []
    found: dict[str, ChosenRun] = {}
    for arm in arms:
        finished = [trial for trial in arm.known() if trial.state == "finished"]
        best = _best(experiment, finished) if is_over and finished else None
        for trial in finished if which == "all" else [best]:
            if trial is not None:
                path = trial.facts["run"]
                # Two cells may be the same run.
                is_best = trial == best or (path in found and found[path].is_best)
                found[path] = ChosenRun(path, is_best)
    return list(found.values())


def _best(experiment: Experiment, finished: Sequence[Trial]) -> Trial:
    """The trial with the best score; the first one of a tie."""
    first = min if experiment.sweep.search.score.direction == "minimize" else max
    return first(finished, key=lambda trial: trial.score or 0.0)


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
        """Whether the tables of the run are complete."""
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
        return all(one.is_done for one in evaluations_of(experiment, path, data_root))
    except UserError:
        return False


def requests(experiment: Experiment, data_root: Path | None) -> list[Request]:
    """The completions that an experiment asks for; none if the instructions file is missing."""
    asked = experiment.listed.completions
    if asked is None or not (file := needs.instructions_file(asked, data_root)).is_file():
        return []
    size, most = asked.batch_size, asked.max_new_tokens
    return [Request(file, Decoding(gamma, 0, most, size), asked.limit) for gamma in asked.gammas]


# ---------------------------------------------------------------- queues


class RunQueue(TrialQueue):
    """Trials about the runs of an experiment."""

    KIND: ClassVar[str]
    """The beginning of the study's name."""
    LEFT: ClassVar[str]
    """What to say of the number of cells that have not ended."""

    def __init__(
        self, storage: BaseStorage, experiment: Experiment, arms: Sequence[ArmStudy]
    ) -> None:
        self._experiment, self._arms = experiment, arms
        sweep, asked = experiment.sweep, json.dumps(self._asked(), sort_keys=True)
        # Another grid is another evaluation.
        digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
        parts = (self.KIND, sweep.recipe_name, f"{sweep.name}-{sweep.identity()}", digest)
        super().__init__(storage, "/".join(parts))
        self.title = experiment.name
        self._final: list[Key] | None = None

    @abstractmethod
    def _asked(self) -> Any:
        """What the results of a trial depend on besides its run."""

    @abstractmethod
    def _keys(self, run: ChosenRun) -> Iterable[str]:
        """The cells of a run."""

    @property
    def _which(self) -> Which | None:
        """Which runs have cells, if not those that the experiment evaluates."""
        return None

    @property
    @abstractmethod
    def n_expected(self) -> int:
        """The number of cells once the sweep has ended."""

    def cells(self) -> Iterator[tuple[Key, Parameters]]:
        """The cells of the runs that are to be evaluated by now."""
        keys = self._final
        if keys is None:
            keys = [key for run in self.runs() for key in self._keys(run)]
            if self._is_final:
                self._final = keys
        return ((key, {}) for key in keys)

    def runs(self) -> list[ChosenRun]:
        """The runs that are to be evaluated by now."""
        return chosen(self._experiment, self._arms, self._which)

    @property
    def _is_final(self) -> bool:
        return all(arm.is_done for arm in self._arms)

    @property
    def is_done(self) -> bool:
        """Whether the sweep has ended, and every cell."""
        return self._is_final and super().is_done

    @property
    def n_left(self) -> int:
        """Cells that have not ended, those included that are expected when the sweep has ended."""
        if self._is_final:
            return super().n_left
        return self.n_expected - sum(trial.has_ended for trial in self.known())

    def describe(self, trial: Trial) -> str:
        """A trial in one line."""
        return str(trial.cell)


class EvaluationQueue(RunQueue):
    """The evaluations of runs under noise; a cell is named after its run."""

    KIND = "cudt/evaluations"
    LEFT = "runs were not evaluated"

    def _asked(self) -> Any:
        listed = self._experiment.listed
        return [listed.perturbations, listed.noise_seeds, listed.samples, listed.exits, listed.on]

    def _keys(self, run: ChosenRun) -> Iterable[str]:
        return [run.path]

    @property
    def n_expected(self) -> int:
        return n_evaluations(self._experiment)

    def outcome(self, trial: Trial) -> str:
        """The result of a finished trial in some words."""
        return f"evaluated in {trial.facts.get('seconds', 0.0):.0f} s"


class CompletionQueue(RunQueue):
    """The completions of the best run of each arm, or of all runs; a cell is a run and a γ."""

    KIND = "cudt/completions"
    LEFT = "files of completions were not written"

    def _asked(self) -> Any:
        asked = self._experiment.listed.completions
        return asked and [asked.instructions, asked.max_new_tokens, asked.limit]

    def _keys(self, run: ChosenRun) -> Iterable[str]:
        asked = self._experiment.listed.completions
        return [f"{run.path} γ={gamma:g}" for gamma in asked.gammas] if asked else []

    @property
    def _which(self) -> Which | None:
        asked = self._experiment.listed.completions
        return asked.runs if asked else None

    @property
    def n_expected(self) -> int:
        sweep, asked = self._experiment.sweep, self._experiment.listed.completions
        if asked is None:
            return 0
        of_arms = (1 if asked.runs == "best" else sweep.budget(arm) for arm in sweep.search.arms)
        return len(sweep.settings) * sum(of_arms) * len(asked.gammas)

    def outcome(self, trial: Trial) -> str:
        """The result of a finished trial in some words."""
        return f"answered in {trial.facts.get('seconds', 0.0):.0f} s"


# ---------------------------------------------------------------- making them


@dataclass(frozen=True)
class EvaluationSource:
    """Evaluates runs."""

    queue: EvaluationQueue
    experiment: Experiment
    options: RunOptions

    def run(self, trial: Trial, report: Report, lease: Lease) -> CellResult:
        """Evaluate a run under every kind of noise that is still missing, on its own test data and
        on others.
        """
        path, options = self.options.out / str(trial.cell), self.options
        run = open_run(path)
        lease.take_run(run, options.out)
        with run.locked(wait=True):
            for asked in evaluations_of(self.experiment, path, options.data_root):
                self._evaluate(asked, tracking(report))
        return CellResult(0.0, self.facts(trial))

    def _evaluate(self, asked: RunEvaluation, track: Track) -> None:
        """Fill what is missing in the tables of a run on one data set."""
        where = (self.options.device, self.options.data_root, track, asked.n_samples)
        evaluate.check(asked.run, asked.grid, asked.n_samples, with_exits=asked.with_exits)
        evaluate.evaluate_ood(asked.run, asked.grid, *where, with_exits=asked.with_exits)

    def facts(self, trial: Trial) -> dict[str, Any]:
        return {"run": trial.cell}

    def is_done(self, cell: Key) -> bool:
        """Whether the tables of a run are complete."""
        return is_evaluated(self.experiment, self.options.out / str(cell), self.options.data_root)


@dataclass(frozen=True)
class CompletionSource:
    """Lets runs answer instructions."""

    queue: CompletionQueue
    experiment: Experiment
    options: RunOptions

    def run(self, trial: Trial, report: Report, lease: Lease) -> CellResult:
        """Answer the instructions that a run has not answered yet."""
        run, request = self._asked(trial.cell)
        lease.take_run(run, self.options.out)
        with run.locked(wait=True):
            generate.check(run)
            generate.generate(
                run, request, self.options.device, self.options.data_root, tracking(report)
            )
        return CellResult(0.0, self.facts(trial))

    def facts(self, trial: Trial) -> dict[str, Any]:
        return {"run": str(trial.cell).partition(" γ=")[0]}

    def is_done(self, cell: Key) -> bool:
        """Whether every instruction is answered."""
        try:
            return generate.is_done(*self._asked(cell))
        except UserError:
            return False

    @cached_property
    def requests(self) -> list[Request]:
        return requests(self.experiment, self.options.data_root)

    def _asked(self, cell: Key) -> tuple[Run, Request]:
        path, _, gamma = str(cell).partition(" γ=")
        request = next(one for one in self.requests if f"{one.decoding.gamma:g}" == gamma)
        return open_run(self.options.out / path), request

    def compare(self) -> list[Path]:
        """For each request, write a file that pairs the completions of plain and of constrained
        training.

        A pair needs a run whose objective reads the last layer only, and one whose objective is
        constrained, each the best of its arm; of several runs the first is taken.
        """
        made = []
        for request in self.requests:
            objectives = [(run, _objective(run)) for run in self._answered(request)]
            plain = next(
                (run for run, objective in objectives if not objective.reads_all_layers), None
            )
            constrained = next(
                (run for run, objective in objectives if objective.is_constrained), None
            )
            if plain is not None and constrained is not None:
                made.append(generate.compare(plain, constrained, request))
        return made

    def _answered(self, request: Request) -> list[Run]:
        """The best runs here that have answered every instruction of a request."""
        paths = [run.path for run in self.queue.runs() if run.is_best]
        return [
            open_run(self.options.out / path)
            for path in paths
            if self.is_done(f"{path} γ={request.decoding.gamma:g}")
        ]


def tracking(report: Report) -> Track:
    """A `track` function that reports every batch."""

    def track(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
        for number, item in enumerate(items):
            report(CellProgress(number, total, None, "batch"))
            yield item

    return track


def _objective(run: Run) -> type[Objective]:
    return objective_class(run.recipe.settings.objective)
