"""A pretrained model of transformers whose own head reads every layer, with its final norm and its pooler.

Any `…ForSequenceClassification`, `…ForTokenClassification`, `…ForCausalLM` or `…ForImageClassification`; the task says
which. A model without the head of its task gets a new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from cudt.config.pretrained import PretrainedTextSection
from cudt.config.schema import FINE_TUNING, Attention, NamedSection, Schedule
from cudt.data import hub
from cudt.data.stored_examples import Kind
from cudt.data.text_checks import check_vocabulary
from cudt.tasks.stored import Config as StoredConfig
from cudt.tasks.stored import Stored
from cudt.tasks.text_classification import TextClassification, TextConfig
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.models.base import LayeredModel
    from cudt.tasks.base import Task

#: The class of transformers that has the head for each kind of example.
AUTO_CLASSES: dict[Kind, str] = {
    "sequence": "AutoModelForSequenceClassification",
    "image": "AutoModelForImageClassification",
    "tokens": "AutoModelForTokenClassification",
    "causal": "AutoModelForCausalLM",
}


class Config(PretrainedTextSection):
    """A pretrained model with a head."""

    pretrained: str
    """Pretrained model: a name on the Hugging Face hub, a folder, `package:name/folder` of an installed package, or
    `run:folder`, a folder of the run folder. A folder with an adapter of peft stands for the adapter and its model."""
    attention: Attention = "auto"
    """Implementation of attention in transformers: auto takes sdpa where the model has it. flash_attention_2 is used in
    updates only; it needs CUDA, the package flash-attn, and weights or training.precision in bf16."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Number format of the weights; those of adapters are always fp32. bf16 is for adapters and for evaluation: most
    updates of whole models are too small for it."""
    trained_by: str | None = None
    """What trained the weights, if that was not `cudt train`, with the settings that a recipe cannot say. `cudt train`
    does not train such a recipe."""
    trained_from: str | None = None
    """Pretrained model that this training began with, if it has a name; only with trained_by."""

    @model_validator(mode="after")
    def _began_with_something(self) -> Config:
        if self.trained_from is not None and self.trained_by is None:
            raise ValueError("trained_from has no effect without trained_by; remove it")
        return self

    @property
    def schedule(self) -> Schedule:
        return FINE_TUNING


def check(config: Config, task: NamedSection, data_root: Path | None) -> None:
    """Refuse tasks whose answers are no classes, and models that are not available."""
    if not isinstance(task, StoredConfig | TextConfig):
        raise UserError(
            f"task.name = '{task.name}': model headed reads texts or stored examples; set task.name to imdb, mnli, "
            "text or stored"
        )
    hub.check(config.source, data_root)


def build(config: Config, task: Task, data_root: Path | None) -> LayeredModel:
    """A model with the head that the task needs."""
    from cudt.models.causal_network import DTYPES
    from cudt.models.headed_network import HeadedImages, HeadedText
    from cudt.models.watched import tried_out

    assert isinstance(task, Stored | TextClassification)
    kind: Kind = task.kind if isinstance(task, Stored) else "sequence"
    n_classes = None if kind == "causal" else task.n_classes
    loaded = hub.load_with_head(
        AUTO_CLASSES[kind], config.source, data_root, DTYPES[config.dtype], config.attention, n_classes
    )
    if kind == "image":
        assert isinstance(task, Stored)
        return HeadedImages(loaded, task.examples("train")[0].inputs["pixel_values"].shape)
    model = HeadedText(loaded, kind)
    if isinstance(task, TextClassification):
        check_vocabulary(task.tokenizer, model.n_embeddings, config.pretrained)
        model.name_classes([str(label) for label in task.classes])
        tried_out(model, task.max_length, config.pretrained, "task.max_length")
    else:
        task.limit_tokens(model.n_embeddings, config.pretrained)
    model.attend_in_updates_by(config.attention)
    return model
