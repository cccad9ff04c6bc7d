"""What a scale may say: a list of experiments, each a sweep and what of it is evaluated afterwards.

throughput: {tflops: 40, machine: an A100}
costs:
  imdb-roberta: {multiplications: 13.6e6, positions: 512, layers: 24, train: 22500, validation: 2500, test: 25000}
experiments:
  - search: text-search
    recipe: imdb-roberta
    reproduces: "the table of accuracy AUC"
    evaluate: best
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cudt.config import mistakes
from cudt.config import recipe as recipes
from cudt.config.schema import Count, NoiseName, Positive, Section
from cudt.sweep import definition
from cudt.sweep.definition import Sweep
from cudt.tasks.video_denoising import VideoConfig
from cudt.utils.errors import UserError

Gamma = Annotated[float, Field(ge=0)]
#: Below the folder of a reproduction, what it made for itself.
GENERATED = "generated"


class Completions(Section):
    """Instructions that the best run of each arm answers."""

    instructions: str
    """A file below the data root."""
    get: str = ""
    """How to get it, where it is missing; FOLDER stands for its folder."""
    gammas: Annotated[list[Gamma], Field(min_length=1)]
    max_new_tokens: Count = 256
    batch_size: Count = 8
    limit: Count | None = None
    """The first so many; all by default."""


class Throughput(Section):
    """How fast reckoning takes a machine to be."""

    tflops: Positive
    machine: str
    """Told with the plan."""
    unit: str = "GPU-h"


class Nominal(Section):
    """What a recipe costs, without its data and weights being there."""

    multiplications: Positive
    """Of a layer at each position: the weights that it is multiplied with, and attention."""
    positions: Positive
    """Of an example, on average."""
    layers: Count | None = None
    """Where the recipe does not say."""
    readout: Annotated[float, Field(ge=0)] = 0.0
    """Multiplications of one layer's readout, for an example."""
    train: Count
    validation: Count
    test: Count


class Listed(Section):
    """An experiment as the file lists it."""

    search: str
    recipe: str | None = None
    """Instead of the search's own."""
    reproduces: str
    """Which table or figure of the paper it is for."""
    evaluate: Literal["best", "all"] = "best"
    """Of the sweep's runs, the best of each arm in each setting, or every one."""
    perturbations: Annotated[list[NoiseName], Field(min_length=1)] = Field(default=["gaussian"])
    noise_seeds: Annotated[list[int], Field(min_length=1)] = Field(default=[0])
    samples: Annotated[int, Field(ge=0)] = 0
    """Pictures of so many test examples of each run that is evaluated (video)."""
    completions: Completions | None = None
    generated: bool = False
    """Whether its data and weights are made by the command, below its own folder."""


class Scale(Section):
    """A file of recipes/reproduce."""

    reproduces: str
    needs: str
    needs_gpu: bool = False
    """Where there is none, costs are reckoned instead of timed, and only `--device cpu` begins it."""
    throughput: Throughput
    costs: dict[str, Nominal]
    """By recipe."""
    experiments: Annotated[list[Listed], Field(min_length=1)]


@dataclass(frozen=True)
class Experiment:
    """A sweep, what of it is evaluated, and what it costs."""

    listed: Listed
    sweep: Sweep
    nominal: Nominal

    @property
    def name(self) -> str:
        return f"{self.sweep.name} · {self.sweep.recipe_name}"

    def data_root(self, given: Path | None, out: Path) -> Path | None:
        """Where its data are."""
        return out / GENERATED if self.listed.generated else given


@dataclass(frozen=True)
class Reproduction:
    """A scale without mistakes."""

    name: str
    scale: Scale
    experiments: list[Experiment]


def folder() -> Path:
    """Where the scales that come with cudt are."""
    return recipes.folder() / "reproduce"


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.yaml"))


def locate(name_or_file: str) -> Path:
    """A scale that comes with cudt, or the file itself."""
    return recipes.find(name_or_file, folder(), "scale", f"there are {', '.join(names())}")


def load(name_or_file: str) -> Reproduction:
    """A scale without mistakes; else all of them are told."""
    path = locate(name_or_file)
    source = f"scale {path.stem}"
    try:
        scale = Scale.model_validate(recipes.read(path))
    except ValidationError as error:
        mistakes.refuse(source, mistakes.explain(Scale, error))
    experiments, found = _experiments(scale)
    found += _repeated(experiments)
    if found:
        mistakes.refuse(source, found)
    return Reproduction(path.stem, scale, experiments)


def _experiments(scale: Scale) -> tuple[list[Experiment], list[str]]:
    """The experiments that are sound, and what is wrong with the others."""
    sound, found = [], []
    for place, listed in enumerate(scale.experiments):
        try:
            sweep = definition.load(listed.search, listed.recipe)
        except UserError as error:
            found.append(f"experiments.{place}: {error}")
            continue
        nominal = scale.costs.get(sweep.recipe_name)
        if nominal is None:
            found.append(f"experiments.{place}: costs.{sweep.recipe_name}: missing; what does its recipe cost?")
            continue
        wrong = [f"experiments.{place}.{line}" for line in _against_recipe(listed, sweep, nominal)]
        found += wrong
        if not wrong:
            sound.append(Experiment(listed, sweep, nominal))
    return sound, found


def _against_recipe(listed: Listed, sweep: Sweep, nominal: Nominal) -> Iterator[str]:
    """What the recipe has nothing for."""
    settings = first_recipe(sweep).settings
    if listed.samples and not isinstance(settings.task, VideoConfig):
        yield f"samples = {listed.samples}: task {settings.task.name} has nothing to look at; they are for video"
    if listed.completions is not None and settings.model.name != "causal":
        yield f"completions: model {settings.model.name} writes no text"
    if nominal.layers is None and not hasattr(settings.model, "layers"):
        yield f"recipe: costs.{sweep.recipe_name}.layers: missing; the recipe does not say how many there are"


def _repeated(experiments: list[Experiment]) -> Iterator[str]:
    for one, other in itertools.combinations(experiments, 2):
        if one.sweep.folder(Path()) == other.sweep.folder(Path()):
            yield f"experiments: {one.name} stands twice"


def first_recipe(sweep: Sweep) -> Any:
    """A recipe of the sweep, for what all of its runs have in common."""
    arm = next(iter(sweep.search.arms))
    return sweep.recipe(sweep.settings[0], arm, sweep.first(arm))
