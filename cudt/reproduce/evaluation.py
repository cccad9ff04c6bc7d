"""Which runs of a sweep are evaluated, and doing that in several processes; what is there is not done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cudt.evaluation import evaluate, generate
from cudt.evaluation.evaluate import Grid
from cudt.evaluation.generate import Request
from cudt.reproduce import needs, reckon
from cudt.reproduce.scale import Experiment
from cudt.runs.run import Run, open_run
from cudt.sweep import results
from cudt.sweep.conduct import Options, environments
from cudt.sweep.workers import Died, Done, Failed, Message, Note, Workers
from cudt.utils.device import DeviceName
from cudt.utils.errors import TrainingInterruptedError, UserError
from cudt.utils.interrupt import StopRequest
from cudt.utils.progress import track


@dataclass(frozen=True)
class Job:
    """What is to be measured and written of one run."""

    run: Path
    device: DeviceName
    data_root: Path | None
    grid: Grid
    samples: int = 0
    requests: tuple[Request, ...] = ()
    """Instructions to answer."""

    def is_done(self) -> bool:
        """A run that is gone or damaged is not; doing it tells why."""
        try:
            run = open_run(self.run)
            is_evaluated = not evaluate.left(run, self.grid, self.samples)
            return is_evaluated and all(generate.is_done(run, request) for request in self.requests)
        except UserError:
            return False


def do(job: Job, display: Any) -> None:
    """Evaluate a run under every kind of noise that it was not yet evaluated under, and answer instructions."""
    run = open_run(job.run)
    with run.locked(wait=True):
        for kind in evaluate.left(run, job.grid, job.samples):
            alone = Grid(perturbations=[kind], noise_seeds=job.grid.noise_seeds)
            evaluate.evaluate_ood(run, alone, job.device, job.data_root, track, job.samples)
        for request in job.requests:
            generate.generate(run, request, job.device, job.data_root, track)


# ---------------------------------------------------------------- which runs


def jobs(experiment: Experiment, options: Options, trials: pd.DataFrame) -> list[Job]:
    """All that is evaluated of a sweep with these trials, whether it is done or not."""
    listed, finished = experiment.listed, trials[trials["state"] == "finished"]
    best = set(_best(experiment, trials)["run"])
    chosen = best if listed.evaluate == "best" else set(finished["run"])
    requests = tuple(_requests(experiment, options))
    grid = Grid(perturbations=[*listed.perturbations], noise_seeds=listed.noise_seeds)
    # In the order of the trials; two cells may be the same run.
    return [
        Job(
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


def _requests(experiment: Experiment, options: Options) -> Iterator[Request]:
    """None where the file with the instructions is missing."""
    asked = experiment.listed.completions
    if asked is None or not (file := needs.instructions_file(asked, options.data_root)).is_file():
        return
    for gamma in asked.gammas:
        yield Request(file, gamma, 0, asked.max_new_tokens, asked.batch_size, asked.limit)


def trials_of(experiment: Experiment, out: Path) -> pd.DataFrame | None:
    """The trials that the sweep's folder tells of; None before it is begun."""
    path = experiment.sweep.folder(out) / "trials_wide.csv"
    if not path.is_file():
        return None
    table = pd.read_csv(path)
    # Where nothing is compared, the setting's name is an empty text.
    return table.assign(setting=table["setting"].astype(object).fillna(""))


def n_done(experiment: Experiment, options: Options) -> int:
    """How many of the evaluations that there will be are done."""
    trials = trials_of(experiment, options.out)
    found = [] if trials is None else jobs(experiment, options, trials)
    return sum(job.is_done() for job in found)


def spent(experiment: Experiment, options: Options) -> tuple[float, float]:
    """Seconds that the finished runs of a sweep took to train, and the operations they are reckoned to be."""
    trials = trials_of(experiment, options.out)
    if trials is None:
        return 0.0, 0.0
    is_there = trials["run"].map(lambda run: isinstance(run, str) and (options.out / run / "recipe.yaml").is_file())
    finished = trials[(trials["state"] == "finished") & is_there]
    sweep, operations = experiment.sweep, 0.0
    for run in finished["run"]:
        recipe = open_run(options.out / run).recipe
        operations += reckon.training(recipe, experiment.nominal, sweep.gammas)
    return float(finished["seconds"].sum()), operations


# ---------------------------------------------------------------- doing it


def conduct(asked: list[Job], options: Options, logs: Path, tell: Callable[[str], None]) -> list[str]:
    """Do the jobs that are not done, several at a time; returns why some failed."""
    waiting = [job for job in asked if not job.is_done()]
    if not waiting:
        return []
    total, failures, ended = len(waiting), [], 0
    told: set[str] = set()
    places = environments(options)[: len(waiting)]
    with StopRequest() as stop, Workers(places, logs, "cudt.reproduce.evaluation:do") as workers:
        while True:
            if stop.requested:
                waiting.clear()
                workers.stop()
            while waiting and workers.has_room:
                workers.start(waiting[0], waiting.pop(0))
            if not workers.is_busy:
                break
            for job, seconds, message in workers.wait(timeout=1.0):
                if isinstance(message, Note):
                    # All runs have the same data, so it is told once.
                    if message.text not in told:
                        told.add(message.text)
                        tell(f"warning: {message.text}")
                    continue
                ended += 1
                problem = _problem(message)
                if problem and not stop.requested:
                    failures.append(f"{job.run}: {problem}")
                tell(f"{ended}/{total}  {job.run}  " + (problem or f"evaluated in {seconds:.0f} s"))
    if stop.requested:
        raise TrainingInterruptedError("interrupted; the same command goes on from here")
    return failures


def _problem(message: Message) -> str:
    match message:
        case Done():
            return ""
        case Failed(reason):
            return reason
        case Died(how):
            return f"its process ended {how}"
        case _:
            return "put aside"


def put_side_by_side(asked: list[Job]) -> list[Path]:
    """For each request, the completions of the first two runs that answered it, erm before constrained."""
    answered: dict[Request, list[Run]] = {}
    for job in asked:
        if job.requests and job.is_done():
            for request in job.requests:
                answered.setdefault(request, []).append(open_run(job.run))
    made = []
    for request, found in answered.items():
        by_objective = {run.recipe.settings.objective: run for run in reversed(found)}
        if {"erm", "constrained"} <= by_objective.keys():
            pair = [generate.path_of(by_objective[name], request) for name in ("erm", "constrained")]
            made.append(generate.compare(pair[0], pair[1], request.limit))
    return made
