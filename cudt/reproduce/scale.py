"""The schema of a scale: a list of experiments, each a sweep and what is evaluated afterwards.

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
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from cudt.config import mistakes
from cudt.config import recipe as recipes
from cudt.config.bounds import Count, CountFromZero, NotNegative, Positive
from cudt.config.names import checked_name
from cudt.config.plugin_names import NoiseName
from cudt.config.recipe import NamedRecipe
from cudt.config.section import Section
from cudt.sweep import definition
from cudt.sweep.definition import Sweep
from cudt.tasks import other_data
from cudt.tasks.video_denoising import VideoConfig
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
    judge: bool = False
    """Whether the best ERM run judges all completions (`cudt judge`)."""


class Throughput(Section):
    """The speed of the machine that cost estimates are for."""

    tflops: Positive
    machine: str
    """Named in the plan."""
    unit: str = "GPU-h"


class Nominal(Section):
    """The sizes from which a recipe's cost is computed, without its data and weights."""

    multiplications: Positive
    """Per layer and position: the weights that a state is multiplied with, and attention."""
    positions: Positive
    """Of an example, on average (tokens or patches)."""
    layers: Count | None = None
    """Required if the recipe does not set the number of layers."""
    readout: NotNegative = 0.0
    """Multiplications of one layer's readout, per example."""
    train: Count
    validation: Count
    test: Count


class Listed(Section):
    """An experiment in the file's list."""

    search: str
    recipe: str | None = None
    """Overrides the recipe of the search."""
    reproduces: str
    """The table or figure of the paper."""
    evaluate: Literal["best", "all", "none"] = "best"
    """Which runs to evaluate: the best of each arm in each setting, all, or none, if they only choose settings."""
    perturbations: Annotated[list[NoiseName], Field(min_length=1)] = Field(default=["gaussian"])
    noise_seeds: Annotated[list[int], Field(min_length=1)] = Field(default=[0])
    samples: CountFromZero = 0
    """The number of test examples saved as pictures for each evaluated run (video)."""
    exits: bool = False
    """Whether to evaluate early exits too, as `cudt eval-ood --exits` does (classification)."""
    both_weights: bool = False
    """Whether to evaluate the weights that are not the run's own too, as `cudt eval-ood --weights` does."""
    on: list[str] = Field(default=[])
    """Tasks or recipes whose test data the same runs are evaluated on too, as `cudt eval-ood --on` does."""
    privacy: Annotated[float, Field(gt=0, lt=1)] | None = None
    """δ, to compute the ε of each level of Gaussian noise, as `cudt privacy` does (texts)."""
    completions: Completions | None = None
    generated: bool = False
    """Whether the command generates the data and weights, below its own folder."""


class Scale(Section):
    """A file of recipes/reproduce."""

    reproduces: str
    needs: str
    needs_gpu: bool = False
    """Without a GPU, costs are estimated instead of timed, and the scale runs only with `--device cpu`."""
    throughput: Throughput
    costs: dict[str, Nominal]
    """By recipe name."""
    experiments: Annotated[list[Listed], Field(min_length=1)]


@dataclass(frozen=True)
class Experiment:
    """A sweep, what is evaluated afterwards, and the sizes that determine its cost."""

    listed: Listed
    sweep: Sweep
    nominal: Nominal

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


def folder() -> Path:
    """The folder of the scales that come with cudt."""
    return recipes.folder() / "reproduce"


def names() -> list[str]:
    return sorted(recipes.files_below(folder()))


def locate(name_or_file: str) -> Path:
    """The path of a scale that comes with cudt, or of the file itself."""
    return recipes.find(name_or_file, folder(), "scale", f"available: {', '.join(names())}")


def load(name_or_file: str) -> Reproduction:
    """A valid scale, or an error that lists every mistake."""
    path = locate(name_or_file)
    source = f"scale {checked_name(path.stem, f'{path}: the name of the file')}"
    try:
        scale = Scale.model_validate(recipes.read(path, locate))
    except ValidationError as error:
        mistakes.refuse(source, mistakes.explain(Scale, error))
    experiments, found = _experiments(scale)
    found += _repeated(experiments)
    if found:
        mistakes.refuse(source, found)
    return Reproduction(path.stem, scale, experiments)


def _experiments(scale: Scale) -> tuple[list[Experiment], list[str]]:
    """The valid experiments, and the mistakes of the others."""
    valid, found = [], []
    for index, listed in enumerate(scale.experiments):
        try:
            sweep = definition.load(listed.search, listed.recipe)
        except UserError as error:
            found.append(f"experiments.{index}: {error}")
            continue
        nominal = scale.costs.get(sweep.recipe_name)
        if nominal is None:
            found.append(f"experiments.{index}: costs.{sweep.recipe_name}: missing; add the sizes of this recipe")
            continue
        wrong = [f"experiments.{index}.{line}" for line in _against_recipe(listed, sweep, nominal)]
        found += wrong
        if not wrong:
            valid.append(Experiment(listed, sweep, nominal))
    return valid, found


def _against_recipe(listed: Listed, sweep: Sweep, nominal: Nominal) -> Iterator[str]:
    """What the experiment asks for that its recipe cannot do."""
    settings = sweep.first_recipe.settings
    if listed.samples and not isinstance(settings.task, VideoConfig):
        yield f"samples = {listed.samples}: task {settings.task.name} has no pictures; samples are for video tasks"
    if listed.completions is not None and not settings.model.generates_text:
        yield f"completions: model {settings.model.name} cannot generate text; use a causal model"
    if listed.exits and (isinstance(settings.task, VideoConfig) or settings.model.generates_text):
        yield f"exits: task {settings.task.name} has no classes; early exits are for classification"
    if listed.both_weights and any(recipe.settings.checkpoints.keep != "both" for recipe in _recipes(sweep)):
        yield "both_weights: the runs do not keep both weights; set checkpoints.keep: both in the search"
    if listed.privacy and (isinstance(settings.task, VideoConfig) or "gaussian" not in listed.perturbations):
        yield "privacy: it is about Gaussian noise on the embeddings of texts; remove it, or use such a task and noise"
    for name in listed.on:
        try:
            other_data.named(settings.task, name, "on")
        except UserError as error:
            yield str(error)
    if nominal.layers is None and not all(map(_sets_layers, _recipes(sweep))):
        yield f"recipe: costs.{sweep.recipe_name}.layers: missing; the recipe does not set the number of layers"


def _recipes(sweep: Sweep) -> Iterator[NamedRecipe]:
    """A recipe for each arm in each compared setting."""
    for setting, arm in itertools.product(sweep.settings, sweep.search.arms):
        yield sweep.recipe(setting, arm, sweep.first_parameters(arm))


def _sets_layers(recipe: NamedRecipe) -> bool:
    """Whether a recipe sets the number of layers: null stands for all layers of a pretrained model."""
    return getattr(recipe.settings.model, "layers", None) is not None


def _repeated(experiments: list[Experiment]) -> Iterator[str]:
    for one, other in itertools.combinations(experiments, 2):
        if one.sweep.folder(Path()) == other.sweep.folder(Path()):
            yield f"experiments: {one.name} is listed twice; remove one"
