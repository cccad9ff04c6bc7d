"""The schema of a scale: a list of experiments, each a sweep and what is evaluated afterwards.

machine: "GPU-hours of an A100"
experiments:
  - search: text-search
    recipe: imdb-roberta
    reproduces: "the table of accuracy AUC"
    hours: 113
    evaluate: best
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from cudt.config import errors, other_data
from cudt.config import recipe as recipes
from cudt.config.recipe import checked_name
from cudt.config.schema import Count, CountFromZero, NoiseName, NotNegative, Positive, Section
from cudt.config.tasks import VideoSection as VideoConfig
from cudt.sweep import search
from cudt.sweep.search import Sweep
from cudt.utils.errors import UserError

#: The folder of generated data and weights, below the folder of a reproduction.
GENERATED = "generated"


class Completions(Section):
    """Instructions that runs answer."""

    instructions: str
    """A file below the data root."""
    get: str = ""
    """How to get the file if it is missing; FOLDER is replaced by its folder."""
    gammas: Annotated[list[NotNegative], Field(min_length=1)]
    max_new_tokens: Count = 256
    batch_size: Count = 8
    limit: Count | None = None
    """The number of instructions, from the first; all by default."""
    runs: Literal["best", "all"] = "best"
    """Which runs answer: the best of each arm in each setting, or all."""


class Listed(Section):
    """An experiment in the file's list."""

    search: str
    recipe: str | None = None
    """Overrides the recipe of the search."""
    reproduces: str
    """The table or figure of the paper."""
    hours: Positive
    """What it takes in all, on the machine of the scale."""
    evaluate: Literal["best", "all", "none"] = "best"
    """Which runs to evaluate: the best of each arm in each setting, all, or none, if they only
    choose settings."""
    perturbations: Annotated[list[NoiseName], Field(min_length=1)] = Field(default=["gaussian"])
    noise_seeds: Annotated[list[int], Field(min_length=1)] = Field(default=[0])
    samples: CountFromZero = 0
    """The number of test examples saved as pictures for each evaluated run (video)."""
    exits: bool = False
    """Whether to evaluate early exits too, as `cudt eval-ood --exits` does (classification)."""
    on: list[str] = Field(default=[])
    """Tasks or recipes whose test data the same runs are evaluated on too, as `cudt eval-ood --on`
    does."""
    completions: Completions | None = None
    generated: bool = False
    """Whether the command generates the data and weights, below its own folder."""


class Scale(Section):
    """A file of recipes/reproduce."""

    reproduces: str
    needs: str
    needs_gpu: bool = False
    """Without a GPU, the scale runs only with `--device cpu`."""
    machine: str
    """What the hours of the experiments are, and on which machine."""
    experiments: Annotated[list[Listed], Field(min_length=1)]


@dataclass(frozen=True)
class Experiment:
    """A sweep, and what is evaluated afterwards."""

    listed: Listed
    sweep: Sweep

    @property
    def name(self) -> str:
        return f"{self.sweep.name} · {self.sweep.recipe_name}"

    def data_root(self, given: Path | None, out: Path) -> Path | None:
        """The folder of its data."""
        return out / GENERATED if self.listed.generated else given


@dataclass(frozen=True)
class Reproduction:
    """A valid scale."""

    name: str
    scale: Scale
    experiments: list[Experiment]

    @property
    def in_order(self) -> list[Experiment]:
        """The experiments in the order in which they run, the cheapest first."""
        return sorted(self.experiments, key=lambda experiment: experiment.listed.hours)


def load(name_or_file: str) -> Reproduction:
    """A valid scale, or an error that lists every mistake."""
    path = recipes.locate(name_or_file, "scale")
    source = f"scale {checked_name(path.stem, f'{path}: the name of the file')}"
    try:
        scale = Scale.model_validate(recipes.read(path, "scale"))
    except ValidationError as error:
        errors.refuse(source, errors.explain(Scale, error))
    experiments, found = _experiments(scale)
    found += _repeated(experiments)
    if found:
        errors.refuse(source, found)
    return Reproduction(path.stem, scale, experiments)


def _experiments(scale: Scale) -> tuple[list[Experiment], list[str]]:
    """The valid experiments, and the mistakes of the others."""
    valid, found = [], []
    for index, listed in enumerate(scale.experiments):
        try:
            sweep = search.load(listed.search, listed.recipe)
        except UserError as error:
            found.append(f"experiments.{index}: {error}")
            continue
        wrong = [f"experiments.{index}.{line}" for line in _against_recipe(listed, sweep)]
        found += wrong
        if not wrong:
            valid.append(Experiment(listed, sweep))
    return valid, found


def _against_recipe(listed: Listed, sweep: Sweep) -> Iterator[str]:
    """What the experiment asks for that its recipe cannot do."""
    settings = sweep.first_recipe.settings
    if listed.samples and not isinstance(settings.task, VideoConfig):
        yield f"samples = {listed.samples}: task {settings.task.name} has no pictures; samples are for video tasks"
    if listed.completions is not None and not settings.model.generates_text:
        yield f"completions: model {settings.model.name} cannot generate text; use a causal model"
    if listed.exits and (isinstance(settings.task, VideoConfig) or settings.model.generates_text):
        yield f"exits: task {settings.task.name} has no classes; early exits are for classification"
    for name in listed.on:
        try:
            other_data.named(settings.task, name, "on")
        except UserError as error:
            yield str(error)


def _repeated(experiments: list[Experiment]) -> Iterator[str]:
    for one, other in itertools.combinations(experiments, 2):
        if one.sweep.folder(Path()) == other.sweep.folder(Path()):
            yield f"experiments: {one.name} is listed twice; remove one"
