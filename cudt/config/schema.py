"""What a recipe may say: every section with its keys, their defaults and their meaning.

The text below a key is its documentation: `cudt recipes show` and the reference pages print it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cudt.config import plugins
from cudt.config.levels import PROBABILITY, LevelScale, parse_levels
from cudt.utils.errors import UserError
from cudt.utils.text import shown

# ---------------------------------------------------------------- types of keys

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
#: Above 0 and at most 1, like a step size.
UpToOne = Annotated[float, Field(gt=0, le=1)]
#: From 0, and below 1.
BelowOne = Annotated[float, Field(ge=0, lt=1)]
#: A number of examples, layers, epochs, pixels …
Count = Annotated[int, Field(ge=1)]
CountFromZero = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Weights = Literal["best", "last"]
#: The number format of a forward pass; bf16 is mixed with fp32 by autocast.
Precision = Literal["fp32", "bf16"]


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """Accept what a function accepts; its UserError is one of pydantic's."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except UserError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(validate)


def _named(kind: str) -> AfterValidator:
    """Accept only the name of a plug-in."""
    return _checked(partial(plugins.check, kind))


def _is_added(noise: str) -> None:
    if not plugins.has("noise", noise, "is_added"):
        raise UserError(f"{shown(noise)} is applied to texts; train on gaussian or uniform")


Gammas = Annotated[str | list[float], _checked(parse_levels)]
Probabilities = Annotated[str | list[float], _checked(partial(parse_levels, scale=PROBABILITY))]
ObjectiveName = Annotated[str, _named("objective")]
DualOptimizerName = Annotated[str, _named("dual optimizer")]
NoiseName = Annotated[str, _named("noise")]
TrainingNoiseName = Annotated[NoiseName, _checked(_is_added)]


# ---------------------------------------------------------------- sections


class Section(BaseModel):
    """A section of a YAML file. It refuses unknown keys, does not convert text to numbers, and
    cannot be changed.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class NamedSection(Section):
    """The `task` or `model` section. What `name` names defines its other keys."""

    name: str
    """Name of one that comes with cudt, or import path of your own module, like
    `my_package.my_model`."""


class ModelSection(NamedSection):
    """The `model` section."""

    generates_text: ClassVar[bool] = False
    """Whether `cudt generate` can answer instructions with such a model."""

    @property
    def learning_rate(self) -> float:
        """For recipes that do not set one; here that of new weights."""
        return 1e-3

    @property
    def warmup_share(self) -> float:
        """The warm-up of that learning rate, as a share of all updates."""
        return 0.0

    @property
    def tokenizer_source(self) -> str | None:
        """The pretrained model whose tokenizer a text task has to use; None for a model without a
        tokenizer.
        """
        return None


class TargetLoss(Section):
    """α chosen from the loss that the last layer should reach: 1 − α = (target_loss / f_0)^(1/L)."""

    target_loss: Positive
    """Loss that the last layer should reach; sets the same α for every layer."""


class Dual(Section):
    """How the multipliers λ are updated."""

    optimizer: DualOptimizerName = "adam"
    """Optimizer of the multipliers: adam, as in the paper; sgd; nupi, which damps oscillations of λ;
    or the import path of your own."""
    learning_rate: Positive = 1e-2
    """Dual learning rate η₂. Typical for pretrained encoders: 0.01 to 0.1."""
    proportional_gain: NotNegative | None = None
    """Proportional gain Kp of nupi; null for 1."""
    smoothing: BelowOne | None = None
    """Weight ν of the past in nupi's moving average of violations; null for 0."""

    @model_validator(mode="after")
    def _gains_are_used(self) -> Dual:
        has_gains = self.proportional_gain is not None or self.smoothing is not None
        if has_gains and self.optimizer in ("adam", "sgd"):
            raise ValueError("proportional_gain and smoothing need optimizer: nupi")
        return self


class Descent(Section):
    """The constraint of each layer, f_l ≤ (1 − α_l)·f_{l−1}, and what relaxes it."""

    alpha: BelowOne | list[BelowOne] | TargetLoss = 0.1
    """Share α of the loss that each layer must remove; one number, one per layer, or {target_loss:
    f}. Typical for pretrained encoders: 0.1 to 0.25."""
    reference: Positive | Literal["auto"] = "auto"
    """Loss f_0 that the first layer has to improve on; auto takes the task's, that of an answer
    that ignores the input. Typical for pretrained encoders: 1."""
    form: Literal["linear", "log", "ladder"] = "linear"
    """How violations are measured: linear, f_l − (1 − α)·f_{l−1}; log, the difference of the
    logarithms; or ladder, the difference to fixed bounds, f_l − (1 − α)^l·f_0."""
    gradient: Literal["full", "proxy"] = "full"
    """What the weights see of a violation: full, all of it, as in the paper; or proxy, f_l alone,
    so that no layer is ever trained to raise its loss. λ ascends on the same violation in both."""
    resilience: Literal["none", "slack", "decay"] = "none"
    """What relaxes constraints that cannot be met: nothing, a learned slack u, or decay of the
    multipliers."""
    beta: Positive | None = None
    """Price β of relaxing a constraint; required with slack and decay, null with none. Typical for
    pretrained encoders: 1 to 5."""
    decay: Literal["coupled", "decoupled"] = "coupled"
    """How λ decays with resilience: decay. coupled: λ/β is part of the dual gradient. decoupled: λ
    is multiplied by 1 − η₂/β before the optimizer's step, as in AdamW; under Adam, λ then settles
    at β for any violation."""
    slack_restart: bool = True
    """Whether the slack starts anew after every epoch; only with resilience: slack."""
    warmup_epochs: CountFromZero = 0
    """Epochs at the start that train without constraints."""
    dual: Dual = Dual()
    """How the multipliers are updated."""

    @model_validator(mode="after")
    def _resilience_has_its_price(self) -> Descent:
        if (self.resilience == "none") != (self.beta is None):
            raise ValueError("beta is the price of resilience slack or decay: set both or neither")
        if self.decay == "decoupled" and (
            self.resilience != "decay" or self.dual.learning_rate > (self.beta or 0)
        ):
            raise ValueError(
                "decay: decoupled multiplies λ by 1 − dual.learning_rate / beta; it needs "
                "resilience: decay, and a dual.learning_rate of at most beta"
            )
        return self


class Training(Section):
    """Training of the weights."""

    epochs: Count = 10
    """Passes over the training data. Typical for pretrained encoders: 1 to 3."""
    batch_size: Count = 32
    """Examples per update, over all micro-batches and processes. Typical for pretrained encoders:
    16."""
    group_by_length: bool = False
    """Whether updates take examples of similar length: less padding, slightly less random
    batches."""
    accumulation: Count = 1
    """Micro-batches per update; more need less memory and give the same step."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Optimizer of the weights."""
    learning_rate: Positive | None = None
    """Primal learning rate η₁; null for what fits the model: 1e-3 for new weights, 2e-5 for
    pretrained ones, 2e-4 for LoRA. Typical for pretrained encoders: 1e-5 to 5e-5."""
    warmup_share: Annotated[NotNegative, Field(le=1)] = 0.0
    """Share of all updates, at the start, in which the learning rate rises linearly from 0. Without
    learning_rate and warmup_share, pretrained models have 0.06."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after warm-up: constant, or falling to 0 until the last update, in a line or
    along a cosine. The dual learning rate stays constant."""
    readout_learning_rate: Positive | None = None
    """Learning rate of the readout's own weights; null for learning_rate."""
    weight_decay: NotNegative = 0.0
    """Weight decay of the optimizer. PyTorch's default for AdamW is 0.01."""
    clip_norm: Positive | None = 1.0
    """Largest norm of the gradient; longer gradients are scaled down. null turns clipping off."""
    precision: Precision = "fp32"
    """Number format of updates; validation is in fp32. On a CPU, bf16 is faster only if the CPU has
    instructions for it."""
    tf32: bool = False
    """Whether updates multiply fp32 matrices in TF32, with 10 bits of precision instead of 23:
    several times faster on CUDA GPUs since Ampere. No effect elsewhere."""
    compile: bool = False
    """Whether updates run the layers compiled by torch.compile: the first update takes minutes,
    later ones are faster. On a CPU, torch needs a C++ compiler for it."""
    log_every: Count = 10
    """Updates between two rows of history.csv."""
    checkpoint_every: Count | None = None
    """Updates between checkpoints within an epoch; every epoch ends with one anyway."""
    validate_every: Count | None = None
    """Updates between validations within an epoch, which also choose the best weights; every epoch
    ends with one anyway."""
    early_stopping: Count | None = None
    """Validations in a row, after warm-up, without better weights than before, after which training
    ends; null trains all epochs."""
    select: Weights = "best"
    """Weights that the run is judged and evaluated by: those of the best validation, or the
    last."""


class CheckpointFiles(Section):
    """Weights on disk. They do not change a run's identity."""

    keep: Literal["best", "last", "both", "none-when-finished"] = "both"
    """Weights of a finished run that stay on disk: those of the best epoch, of the last one, of
    both, or none, for sweeps of many runs, which then cannot be evaluated on test data."""

    @property
    def kept(self) -> set[Weights]:
        """The weights that stay when a run is finished."""
        return {one for one in ("best", "last") if self.keep in ("both", one)}


class Readout(Section):
    """Read only a random sample of tokens in training; evaluation always reads all."""

    tokens: Count | None = None
    """Answer tokens per example that are read at every layer but the last, drawn in each epoch;
    null for all."""


class Noise(Section):
    """The noise in training, with standard deviation σ = γ_train·σ_x."""

    kind: TrainingNoiseName = "gaussian"
    """Noise added to embeddings or pixels: gaussian, uniform, or the import path of your own."""
    gamma_train: NotNegative = 0.0
    """Noise level γ in training, in standard deviations of the signal. The paper uses 0 to 1 for
    text, 0 to 0.15 for video."""


class Loading(Section):
    """How batches get to the device. It does not change a run's identity, nor its results."""

    workers: CountFromZero | Literal["auto"] = "auto"
    """Processes that read and collate batches while the device computes; auto is 0 on the CPU and 2
    on an accelerator."""


class Evaluation(Section):
    """Defaults of `cudt eval-ood`. They do not change a run's identity."""

    gammas: Gammas = "0:2.1:0.15"
    """Noise levels γ, as start:stop:step or a list."""
    probabilities: Probabilities = "0:0.3:0.03"
    """Levels p of discrete noise: the probability that a character is replaced, and that a word is
    left out."""
    perturbations: Annotated[list[NoiseName], Field(min_length=1)] = ["gaussian"]
    """Kinds of noise to evaluate: gaussian, uniform, discrete (in texts), or import paths."""
    noise_seeds: Annotated[list[int], Field(min_length=1)] = [0]
    """Seeds of the noise; each adds one evaluation of every level."""
    batch_size: Count = 256
    """Examples per batch in evaluation; changes memory and speed, not results."""
    precision: Precision = "fp32"
    """Number format of the forward pass; losses and scores are computed from its answers in double
    precision."""
    examples: Literal["all", "none"] = "all"
    """Whether to write examples.parquet: loss, score, confidence and prediction of every test
    example at every layer and level, which intervals of differences, ratios and early exits need."""

    def levels(self, scale: LevelScale) -> list[float]:
        """The levels γ or p."""
        return parse_levels(getattr(self, scale.setting), scale)


class Published(Section):
    """The rows of the paper's tables that a recipe's runs are compared with."""

    model: str
    """Model as the paper's tables call it."""
    dataset: str
    """Dataset as the paper's tables call it."""
    erm: dict[str, Any] = {}
    """Settings of the paper's unconstrained model that differ from this recipe, by dotted key."""


class Recipe(Section):
    """One experiment. `model.name` and `task.name` define the keys of these sections."""

    reproduces: str = ""
    """What the recipe reproduces, for `cudt recipes`."""
    published: Published | None = None
    """The paper's results to compare with, if any."""
    needs: str = ""
    """Data, weights and hardware that it needs."""
    expect: str = ""
    """Results and run time to expect."""
    task: NamedSection
    """The data, the loss and the metric."""
    model: ModelSection
    """The model."""
    objective: ObjectiveName = "constrained"
    """What is minimised: constrained, erm, supervised, or the import path of your own;
    `--objective` overrides it."""
    descent: Descent = Descent()
    """The constraints."""
    training: Training = Training()
    """Training of the weights."""
    readout: Readout = Readout()
    """Sampling of tokens in training."""
    noise: Noise = Noise()
    """The noise in training."""
    loading: Loading = Loading()
    """How batches get to the device."""
    evaluation: Evaluation = Evaluation()
    """Defaults of `cudt eval-ood`."""
    checkpoints: CheckpointFiles = CheckpointFiles()
    """Weights on disk."""
    seed: Seed = 0
    """Seed of weights, batches and training noise; `--seed` overrides it."""

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Recipe:
        keep, select = self.checkpoints.keep, self.training.select
        if keep not in (select, "both", "none-when-finished"):
            raise ValueError(
                f"checkpoints.keep: {keep} deletes the weights of training.select: {select}, by "
                f"which the run is evaluated; set keep to {select} or both"
            )
        warmup, epochs = self.descent.warmup_epochs, self.training.epochs
        # It would be ERM under another name.
        if warmup >= epochs and plugins.has("objective", self.objective, "is_constrained"):
            raise ValueError(
                f"descent.warmup_epochs: {warmup} of training.epochs = {epochs} leave no epoch "
                "with constraints"
            )
        return self
