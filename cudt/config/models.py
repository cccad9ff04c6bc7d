"""The `model` section of a recipe for each model that comes with cudt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cudt.config import schema
from cudt.config.schema import Count, ModelSection, Positive, Section, UpToOne

#: What transformers calls `attn_implementation`; auto is its own choice.
Attention = Literal["auto", "eager", "sdpa"]


#: A version on the Hugging Face hub: a branch, a tag or the hash of a commit. It becomes part of a
#: path in the hub's cache.
Revision = Annotated[str, Field(pattern=r"^\w[\w-]*([./][\w-]+)*$")]


class Lora(Section):
    """Low-rank adapters; the defaults are the paper's."""

    rank: Count = 6
    """Rank of the adapters."""
    alpha: Positive = 8.0
    """Scale of the adapters: updates are multiplied by alpha/rank."""
    dropout: schema.BelowOne = 0.05
    """Probability that an input of an adapter is dropped in training."""
    targets: Literal["all-linear", "default"] | Annotated[list[str], Field(min_length=1)] = (
        "all-linear"
    )
    """Modules with adapters: `all-linear`, `default` (what peft adapts), or names."""


class PretrainedName(str):
    """The name of a pretrained model and its version on the hub; None for the newest."""

    revision: str | None

    def __new__(cls, name: str, *, revision: str | None = None) -> PretrainedName:
        made = super().__new__(cls, name)
        made.revision = revision
        return made


class PretrainedSection(ModelSection):
    """The `model` section of models that load pretrained weights or embeddings."""

    revision: Revision | None = None
    """Version of the pretrained model on the hub: a branch, a tag or the hash of a commit; null for
    the newest. With it, models in folders are not read."""

    @property
    def source(self) -> PretrainedName | None:
        """The pretrained model that is loaded; None if there is none."""
        return None


class WholePretrainedSection(PretrainedSection):
    """The same for models that are pretrained as a whole."""

    pretrained: str
    """Pretrained model: a name on the Hugging Face hub, a folder, or `package:name/folder` of an
    installed package."""
    lora: Lora | None = None
    """Low-rank adapters to train besides the readout; null trains all weights."""

    @property
    def source(self) -> PretrainedName:
        return PretrainedName(self.pretrained, revision=self.revision)

    @property
    def learning_rate(self) -> float:
        """Small, so that the first steps do not undo the pretraining; adapters start at 0."""
        return 2e-5 if self.lora is None else 2e-4

    @property
    def warmup_share(self) -> float:
        """A warm-up for the same reason."""
        return 0.06


class TextModelSection(WholePretrainedSection):
    """The same for models that read what their own tokenizer makes of texts."""

    attention: Attention = "auto"
    """Implementation of attention in transformers; auto takes sdpa where the model has it."""

    @property
    def tokenizer_source(self) -> str:
        return self.source


class Encoder(TextModelSection):
    """A pretrained text encoder, and which of its states the readout uses."""

    readout: Literal["first", "mean"] = "first"
    """What the head reads: the state of the first token, or the mean over all tokens."""


class Causal(TextModelSection):
    """A pretrained causal language model, and which of its weights are trained."""

    generates_text = True

    lora: Lora | None = Lora()
    """Low-rank adapters to train; null trains all weights."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Number format of the pretrained weights; adapters are always fp32."""
    gradient_checkpointing: bool = False
    """Whether the backward pass recomputes each layer: less memory, about a third more time."""

    @model_validator(mode="after")
    def _whole_training_is_in_fp32(self) -> Causal:
        if self.lora is None and self.dtype == "bf16":
            raise ValueError(
                "to train all weights, dtype must be fp32: most updates are too small for bf16 "
                "to hold; training.precision: bf16 computes in it"
            )
        return self


class Vit(WholePretrainedSection):
    """A pretrained vision transformer, and how its tokens are read as pixels."""

    readout: Literal["direct", "linear"] = "direct"
    """How tokens become pixels: direct reads them as the pixels of their patches, which must have
    as many numbers; linear trains one linear map for all layers, behind the model's final norm."""


class Unrolled(PretrainedSection):
    """The size of a UT."""

    layers: Count = 5
    """Number of layers L; the paper uses 3, 5, 7 and 9."""
    width: Count | None = None
    """Width of the word embeddings; null for that of `embeddings_from`, or 64 without it."""
    attention_width: Count = 32
    """Rows of W₁, the width in which attention compares words."""
    step_size: UpToOne = 0.5
    """Step size η of a layer."""
    tie_layers: bool = False
    """Whether all layers share one W₁ and one W₂."""
    embeddings_from: str | None = None
    """Pretrained encoder whose word embeddings and tokenizer are used, named as in
    `model.pretrained`; else null."""

    @property
    def source(self) -> PretrainedName | None:
        name = self.embeddings_from
        return None if name is None else PretrainedName(name, revision=self.revision)

    @property
    def tokenizer_source(self) -> str | None:
        return self.source


class PatchSection(ModelSection):
    """The keys of all models that split frames into patches."""

    layers: Count = 5
    """Number of layers L; the paper uses 3, 5 and 7."""
    patch: Annotated[int, Field(ge=2)] = 16
    """Side of a patch in pixels; the frame size must be a multiple of it."""
    atoms: Count = 24
    """Cosines along each side of a patch; its dictionary has atoms² columns."""
    tie_layers: bool = False
    """Whether all layers share one set of weights."""
    attention_unit: Positive = 255.0
    """Unit of the pixels that attention compares. With 255 they are between 0 and 1; with 1 the
    softmax over products of 0 to 255 selects a single frame, and nothing is averaged over time."""


class Dust(PatchSection):
    """The size of a DUST and the weights of its energies; dictionaries have atoms² columns."""

    sparsity: Positive = 0.9
    """λ₁, the weight of the ℓ₁ penalty on codes."""
    correlation: Positive = 0.25
    """λ₂, the weight of the attention energy."""


class UnrolledVideo(PatchSection):
    """The size of a UT for video; attention compares atoms² cosine coefficients."""

    step_size: UpToOne = 0.5
    """Step size η of a layer."""


MODELS: dict[str, type[ModelSection]] = {
    "causal": Causal,
    "dust": Dust,
    "encoder": Encoder,
    "unrolled": Unrolled,
    "unrolled_video": UnrolledVideo,
    "vit": Vit,
}
