"""What a recipe may say: the typed sections are the schema, and their defaults work."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from cudt.config import registry
from cudt.config.levels import GAMMA, PROBABILITY, LevelScale, check_levels, parse_levels
from cudt.utils.errors import UserError


class PluginName:
    """Marks a text as the name of a plug-in: a file that comes with cudt, or the import path of a module."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def in_words(self) -> str:
        """The allowed names."""
        return f"one of {', '.join(repr(name) for name in registry.names(self.kind))} or an import path"

    def check(self, name: str) -> str:
        """The name, if there is such a plug-in."""
        if why := registry.problem(self.kind, name):
            raise ValueError(why)
        return name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


def _can_be_trained_on(name: str) -> str:
    if not registry.load("noise", name).NOISE.is_added:
        raise ValueError(f"'{name}' is applied to texts; train on noise that is added to embeddings or pixels")
    return name


ObjectiveName = Annotated[str, PluginName("objective")]
DualOptimizerName = Annotated[str, PluginName("dual optimizer")]
NoiseName = Annotated[str, PluginName("noise")]
TrainingNoiseName = Annotated[str, PluginName("noise"), AfterValidator(_can_be_trained_on)]

DescentRate = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Part of a recipe: unknown keys are refused, a text is not taken for a number, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False)


class NamedSection(Section):
    """The `model` or `task` section: `name` picks the file that defines the rest of it."""

    name: str


class ModelSection(NamedSection):
    """The `model` section."""

    @property
    def tokenizer_source(self) -> str | None:
        """The pretrained model whose tokenizer a text task has to use; None for a model that brings none."""
        return None


class Limit(Section):
    """At most so many examples of a split, drawn by `data_seed`."""

    train: Count | None = None
    validation: Count | None = None
    test: Count | None = None


class TargetLoss(Section):
    """α from where the last layer should end: 1 − α = (target_loss / f_0)^(1/L)."""

    target_loss: Positive


def _alpha_kind(value: Any) -> str:
    return "<target>" if isinstance(value, dict | TargetLoss) else "<list>" if isinstance(value, list) else "<number>"


Alpha = Annotated[
    Annotated[DescentRate, Tag("<number>")]
    | Annotated[list[DescentRate], Tag("<list>")]
    | Annotated[TargetLoss, Tag("<target>")],
    Discriminator(_alpha_kind),
]
Reference = Annotated[
    Annotated[Positive, Tag("<number>")] | Annotated[Literal["auto"], Tag("<word>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<number>"),
]
Gammas = Annotated[
    Annotated[str, Tag("<word>")] | Annotated[list[float], Tag("<list>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<list>"),
]
ColumnNames = Annotated[
    Annotated[str, Tag("<word>")] | Annotated[list[str], Field(min_length=1, max_length=2), Tag("<list>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<list>"),
]
WordOrWords = Annotated[
    Annotated[str, Tag("<word>")] | Annotated[list[str], Field(min_length=1), Tag("<list>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<list>"),
]


class Dual(Section):
    """How the multipliers λ ascend."""

    optimizer: DualOptimizerName = "adam"
    learning_rate: Positive = 1e-2
    proportional_gain: Annotated[float, Field(ge=0)] | None = None
    smoothing: Annotated[float, Field(ge=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _gains_are_used(self) -> Dual:
        has_gains = self.proportional_gain is not None or self.smoothing is not None
        if has_gains and not getattr(registry.load("dual optimizer", self.optimizer), "USES_GAINS", False):
            raise ValueError("proportional_gain and smoothing belong to optimizer: nupi")
        return self


class Descent(Section):
    """The constraints f_l ≤ (1 − α_l)·f_{l−1} and their resilience."""

    alpha: Alpha = 0.1
    reference: Reference = "auto"
    form: Literal["linear", "log"] = "linear"
    resilience: Literal["none", "slack", "decay"] = "none"
    beta: Positive | None = None
    slack_restart: bool = True
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    dual: Dual = Dual()

    @model_validator(mode="after")
    def _resilience_has_a_price(self) -> Descent:
        if (self.resilience == "none") != (self.beta is None):
            raise ValueError("beta is the price of resilience: give it with slack or decay, and not with none")
        return self


class Training(Section):
    """The primal side."""

    epochs: Count = 10
    batch_size: Count = 32
    """Examples in an update, over all micro-batches and processes."""
    group_by_length: bool = False
    """Put examples of like length into an update: less padding, but batches that are a little less random."""
    accumulation: Count = 1
    """Into how many micro-batches an update is split; changes memory, never the step."""
    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: Positive = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_norm: Positive | None = 1.0
    precision: Literal["fp32", "bf16"] = "fp32"
    log_every: Count = 10
    checkpoint_every: Count | None = None
    """Updates between checkpoints within an epoch; there is one after each epoch in any case."""


class Readout(Section):
    """What an update reads of the layers, where reading all costs too much: unbiased samples. Evaluation reads all."""

    tokens: Count | None = None
    """Answer tokens of an example that are read at every layer but the last, drawn anew in each epoch; else all."""
    layers: Count | None = None
    """Constraints (of `supervised`: layers) that an update looks at, drawn anew each time; else all."""


class Noise(Section):
    """The perturbation seen in training: σ = γ_train·σ_x."""

    kind: TrainingNoiseName = "gaussian"
    gamma_train: Annotated[float, Field(ge=0)] = 0.0


class Evaluation(Section):
    """What `cudt eval-ood` does when it is not told otherwise. Not part of a run's identity."""

    gammas: Gammas = "0:2.1:0.15"
    probabilities: Gammas = "0:0.3:0.03"
    """The levels p of discrete noise."""
    perturbations: Annotated[list[NoiseName], Field(min_length=1)] = ["gaussian"]
    noise_seeds: Annotated[list[int], Field(min_length=1)] = [0]
    batch_size: Count = 256

    @field_validator("gammas")
    @classmethod
    def _are_gammas(cls, gammas: str | list[float]) -> str | list[float]:
        as_grid(gammas)
        return gammas

    @field_validator("probabilities")
    @classmethod
    def _are_probabilities(cls, probabilities: str | list[float]) -> str | list[float]:
        as_grid(probabilities, PROBABILITY)
        return probabilities

    @property
    def grid(self) -> list[float]:
        """The levels γ."""
        return self.levels(GAMMA)

    def levels(self, scale: LevelScale) -> list[float]:
        """The levels of a scale: those that the recipe lists, or the scale's own."""
        return as_grid(getattr(self, scale.setting) if scale.setting else scale.default, scale)


def as_grid(levels: str | list[float], scale: LevelScale = GAMMA) -> list[float]:
    try:
        return parse_levels(levels, scale) if isinstance(levels, str) else check_levels(levels, str(levels), scale)
    except UserError as error:
        raise ValueError(str(error)) from None


class Published(Section):
    """Which numbers of the paper's tables a recipe's runs stand beside."""

    model: str
    dataset: str
    erm: dict[str, Any] = {}
    """Settings of the paper's unconstrained model that are not the recipe's own."""


class Recipe(Section):
    """One experiment. `model` and `task` are typed by the files that they name (see recipe.py)."""

    reproduces: str
    published: Published | None = None
    needs: str
    expect: str
    task: NamedSection
    model: ModelSection
    objective: ObjectiveName = "constrained"
    descent: Descent = Descent()
    training: Training = Training()
    readout: Readout = Readout()
    noise: Noise = Noise()
    evaluation: Evaluation = Evaluation()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
