"""Which runs of a sweep are evaluated, and evaluating them in several processes; finished evaluations are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cudt.evaluation import evaluate, generate
from cudt.evaluation.generate import Request
from cudt.evaluation.grid import Grid
from cudt.method.objectives.base import objective_class
from cudt.reproduce import cost, needs
from cudt.reproduce.scale import Experiment
from cudt.runs.find import open_run
from cudt.runs.options import RunOptions
from cudt.runs.run import Run
from cudt.sweep import results
from cudt.utils.device import DeviceName
from cudt.utils.errors import TrainingInterruptedError, UserError
from cudt.utils.interrupt import StopRequest
from cudt.utils.progress import track
from cudt.utils.worker_processes import worker_environments
from cudt.utils.workers import Died, Done, Failed, Message, Reporter, Warned, Workers


@dataclass(frozen=True)
class EvaluationJob:
    """The evaluation of one run, and the instructions that it answers."""

    run: Path
    device: DeviceName
    data_root: Path | None
    grid: Grid
    samples: int = 0
    requests: tuple[Request, ...] = ()

    def is_done(self) -> bool:
        """Whether nothing is left to do; False for a missing or damaged run, whose evaluation then reports why."""
        try:
            run = open_run(self.run)
            is_evaluated = not evaluate.left(run, self.grid, self.samples)
            return is_evaluated and all(generate.is_done(run, request) for request in self.requests)
        except UserError:
            return False


def evaluate_run(job: EvaluationJob, report: Reporter) -> None:
    """Evaluate a run under every kind of noise that is still missing, and answer the instructions."""
    run = open_run(job.run)
    with run.locked(wait=True):
        for kind in evaluate.left(run, job.grid, job.samples):
            alone = Grid(perturbations=[kind], noise_seeds=job.grid.noise_seeds)
            evaluate.check(run, alone, job.samples)
            evaluate.evaluate_ood(run, alone, job.device, job.data_root, track, job.samples)
        for request in job.requests:
            generate.check(run)
            generate.generate(run, request, job.device, job.data_root, track)


# ---------------------------------------------------------------- which runs


def jobs(experiment: Experiment, options: RunOptions, trials: pd.DataFrame) -> list[EvaluationJob]:
    """All evaluations of a sweep with these trials, finished ones included."""
    listed, finished = experiment.listed, trials[trials["state"] == "finished"]
    best = set(_best(experiment, trials)["run"])
    chosen = best if listed.evaluate == "best" else set(finished["run"])
    requests = tuple(_requests(experiment, options))
    grid = Grid(perturbations=[*listed.perturbations], noise_seeds=listed.noise_seeds)
    # In the order of the trials, each run once: two cells may be the same run.
    return [
        EvaluationJob(
            options.out / run,
            options.device,
            options.data_root,
            grid,
            listed.samples,
            requests if run in best else (),
        )
        for run in dict.fromkeys(finished["run"])
        if run in chosen
    ]


def _best(experiment: Experiment, trials: pd.DataFrame) -> pd.DataFrame:
    """The best finished trial of each arm in each setting."""
    search = experiment.sweep.search
    best = results.best_of_arms(trials, search.score.direction, list(search.settings))
    return best[best["score"].notna()]


def _requests(experiment: Experiment, options: RunOptions) -> Iterator[Request]:
    """The completions that an experiment asks for; none if the instructions file is missing."""
    asked = experiment.listed.completions
    if asked is None or not (file := needs.instructions_file(asked, options.data_root)).is_file():
        return
    for gamma in asked.gammas:
        yield Request(file, gamma, 0, asked.max_new_tokens, asked.batch_size, asked.limit)


def trials_of(experiment: Experiment, out: Path) -> pd.DataFrame | None:
    """The trials in the sweep's folder; None before the sweep has begun."""
    path = experiment.sweep.folder(out) / "trials_wide.csv"
    if not path.is_file():
        return None
    table = pd.read_csv(path)
    # pandas reads the empty name of a sweep without settings as NaN.
    return table.assign(setting=table["setting"].astype(object).fillna(""))


def n_done(experiment: Experiment, options: RunOptions) -> int:
    """The number of finished evaluations."""
    trials = trials_of(experiment, options.out)
    found = [] if trials is None else jobs(experiment, options, trials)
    return sum(job.is_done() for job in found)


def spent(experiment: Experiment, options: RunOptions) -> tuple[float, float]:
    """Seconds that the finished runs of a sweep took to train, and their estimated operations."""
    trials = trials_of(experiment, options.out)
    if trials is None:
        return 0.0, 0.0
    exists = trials["run"].map(lambda run: isinstance(run, str) and (options.out / run / "recipe.yaml").is_file())
    finished = trials[(trials["state"] == "finished") & exists]
    sweep, operations = experiment.sweep, 0.0
    for run in finished["run"]:
        recipe = open_run(options.out / run).recipe
        operations += cost.training(recipe, experiment.nominal, sweep.gammas)
    return float(finished["seconds"].sum()), operations


# ---------------------------------------------------------------- evaluating


def run_jobs(
    jobs: list[EvaluationJob], options: RunOptions, logs: Path, print_line: Callable[[str], None]
) -> list[str]:
    """Run the jobs that are not done, several at a time; returns why some failed. `print_line` prints a line."""
    waiting = [job for job in jobs if not job.is_done()]
    if not waiting:
        return []
    outcomes = _Outcomes(len(waiting), print_line)
    environments = worker_environments(options.workers, options.device)[: len(waiting)]
    with StopRequest() as stop, Workers(environments, logs, "cudt.reproduce.evaluation:evaluate_run") as workers:
        while True:
            if stop.requested:
                waiting.clear()
                workers.stop()
            while waiting and workers.has_room:
                workers.start(waiting[0], waiting.pop(0))
            if not workers.is_busy:
                break
            for job, seconds, message in workers.wait(timeout=1.0):
                outcomes.add(job, seconds, message, is_stopping=stop.requested)
    if stop.requested:
        raise TrainingInterruptedError("interrupted; run the same command to resume")
    return outcomes.failures


class _Outcomes:
    """Counts and prints how evaluations ended, and collects why some failed."""

    def __init__(self, total: int, print_line: Callable[[str], None]) -> None:
        self._total, self._print_line = total, print_line
        self._ended = 0
        self._warned: set[str] = set()
        self.failures: list[str] = []

    def add(self, job: EvaluationJob, seconds: float, message: Message, *, is_stopping: bool) -> None:
        if isinstance(message, Warned):
            # All runs use the same data, so each warning is shown once.
            if message.text not in self._warned:
                self._warned.add(message.text)
                self._print_line(f"warning: {message.text}")
            return
        self._ended += 1
        problem = _problem(message)
        if problem and not is_stopping:
            self.failures.append(f"{job.run}: {problem}")
        self._print_line(f"{self._ended}/{self._total}  {job.run}  " + (problem or f"evaluated in {seconds:.0f} s"))


def _problem(message: Message) -> str:
    match message:
        case Done():
            return ""
        case Failed(reason):
            return reason
        case Died(how):
            return f"the worker process ended {how}"
        case _:
            return "interrupted, can be resumed"


def compare_completions(jobs: list[EvaluationJob]) -> list[Path]:
    """For each request, write a file that pairs the completions of plain and of constrained training, in this order.

    A pair needs a run whose objective reads the last layer only, and one whose objective is constrained; of several
    runs the first is taken.
    """
    answered: dict[Request, list[Run]] = {}
    for job in jobs:
        if job.requests and job.is_done():
            for request in job.requests:
                answered.setdefault(request, []).append(open_run(job.run))
    made = []
    for request, runs in answered.items():
        objectives = [(run, objective_class(run.recipe.settings.objective)) for run in runs]
        plain = next((run for run, objective in objectives if not objective.reads_all_layers), None)
        constrained = next((run for run, objective in objectives if objective.is_constrained), None)
        if plain is not None and constrained is not None:
            paths = [generate.path_of(run, request) for run in (plain, constrained)]
            made.append(generate.compare(paths[0], paths[1], request.limit))
    return made
