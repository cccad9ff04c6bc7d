"""What the paper costs: the operations of every run and evaluation of the full scale, and their time on N GPUs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.scale import formulas
from benchmarks.scale.lengths import Lengths
from benchmarks.scale.shapes import PAPER, Shape
from cudt.config.recipe import NamedRecipe
from cudt.evaluation.grid import Grid
from cudt.method.objectives.base import objective_class
from cudt.noise.base import training_level
from cudt.reproduce import cost, scale
from cudt.reproduce.scale import Experiment


@dataclass(frozen=True)
class Job:
    """A run or an evaluation of one."""

    operations: float
    batch: int
    """Examples of an update, which more processes cannot share; 1 for evaluations."""


@dataclass(frozen=True)
class Priced:
    """An experiment of the full scale."""

    name: str
    jobs: list[Job]
    runs: int
    planned: float
    """Operations in the estimate of `cudt reproduce --plan`, without completions, which are not counted here either."""

    @property
    def operations(self) -> float:
        return sum(job.operations for job in self.jobs)


def priced(lengths: Sequence[Lengths]) -> list[Priced]:
    """All experiments, cheapest first."""
    by_data = {one.recipe.split("-")[0]: one for one in lengths}
    found = [_priced(experiment, by_data) for experiment in scale.load("full").experiments]
    return sorted(found, key=lambda one: one.operations)


def _priced(experiment: Experiment, lengths: dict[str, Lengths]) -> Priced:
    sweep, nominal = experiment.sweep, experiment.nominal
    jobs, runs, planned = [], 0, cost.evaluation(experiment, answers=False)
    for setting in sweep.settings:
        for arm in sweep.search.arms:
            recipe, count = sweep.recipe(setting, arm, sweep.first_parameters(arm)), sweep.budget(arm)
            text = lengths.get(sweep.recipe_name.split("-")[0])
            shape = _shape(sweep.recipe_name, recipe, text)
            training = _training(recipe, shape, experiment, text)
            jobs += [Job(training, recipe.settings.training.batch_size)] * count
            evaluated = 1 if experiment.listed.evaluate == "best" else count
            jobs += [Job(_evaluation(recipe, shape, experiment), 1)] * evaluated
            runs += count
            planned += count * cost.training(recipe, nominal, sweep.gammas)
    return Priced(experiment.name, jobs, runs, planned)


def _shape(name: str, recipe: NamedRecipe, text: Lengths | None) -> Shape:
    """One example of a recipe, as long as the mean."""
    kind = name.split("-")[1]
    shape = PAPER["ut_video" if kind == "ut" and text is None else kind]
    model = recipe.settings.model
    layers, tied = getattr(model, "layers", None) or shape.layers, getattr(model, "tie_layers", shape.tied)
    shape = replace(shape, layers=layers, tied=tied)
    return shape if text is None else replace(shape, tokens=round(text.mean), read=round(text.answer))


def _training(recipe: NamedRecipe, shape: Shape, experiment: Experiment, text: Lengths | None) -> float:
    """Updates on padded batches, and validations on batches of similar length."""
    settings, nominal = recipe.settings, experiment.nominal
    padded = shape if text is None else replace(shape, tokens=round(text.padded))
    reads_all = objective_class(settings.objective).reads_all_layers
    of_last = formulas.operations(padded)
    update = of_last.update(1)
    if reads_all:
        thinned = of_last if text is None else formulas.operations(replace(padded, read=round(text.read)))
        update += (shape.layers - 1) * (thinned.readout + thinned.readout_backward)
    validations = settings.training.epochs + 1 + len(experiment.sweep.gammas or [])
    validation = formulas.operations(shape).evaluation(shape.layers)
    return settings.training.epochs * nominal.train * update + validations * nominal.validation * validation


def _evaluation(recipe: NamedRecipe, shape: Shape, experiment: Experiment) -> float:
    listed, settings = experiment.listed, recipe.settings
    levels = 0
    for kind in listed.perturbations:
        asked = Grid().levels(kind, settings.evaluation)
        levels += len({*asked, training_level(kind, settings.noise.gamma_train)})
    one = formulas.operations(shape).evaluation(shape.layers)
    return levels * len(listed.noise_seeds) * experiment.nominal.test * one


# ---------------------------------------------------------------- time on N GPUs


def wall_time(jobs: Sequence[Job], gpus: int, speed: float, *, split: bool = False) -> float:
    """Seconds of all jobs on N GPUs, the most expensive first, each to the GPUs that are free first.

    With `split`, a run that would take longer than its share of the whole is trained by several GPUs: as many as make
    it short enough, and at most one for each example of its updates.
    """
    fair = sum(job.operations for job in jobs) / speed / gpus
    free = [0.0] * gpus
    for job in sorted(jobs, key=lambda one: -one.operations):
        seconds = job.operations / speed
        wanted = min(gpus, job.batch, max(1, -(-int(seconds * 1000) // max(1, int(fair * 1000))))) if split else 1
        starts = [heapq.heappop(free) for _ in range(wanted)]
        end = max(starts) + seconds / wanted
        for _ in range(wanted):
            heapq.heappush(free, end)
    return max(free)


def longest(jobs: Sequence[Job], speed: float) -> float:
    """Seconds of the most expensive job."""
    return max(job.operations for job in jobs) / speed


def all_jobs(experiments: Sequence[Priced]) -> list[Job]:
    return list(_all(experiments))


def _all(experiments: Sequence[Priced]) -> Iterator[Job]:
    for one in experiments:
        yield from one.jobs
