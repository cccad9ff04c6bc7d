"""A pretrained causal language model of transformers (Llama, SmolLM, any with a linear head).

It is fine-tuned in full or with LoRA. The readout of every layer is the model's own final norm and
head. Logits are computed in chunks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from cudt.config.pretrained import PretrainedTextSection
from cudt.config.schema import Attention, NamedSection, Schedule
from cudt.data import hub
from cudt.data.text_checks import check_vocabulary
from cudt.models.lora import Lora, schedule_with
from cudt.tasks.alpaca import Alpaca
from cudt.tasks.alpaca import Config as AlpacaConfig
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.models.causal_network import Causal
    from cudt.tasks.base import Task


class Config(PretrainedTextSection):
    """A pretrained causal language model, and which of its weights are trained."""

    generates_text = True

    pretrained: str
    """Pretrained model: a name on the Hugging Face hub, a folder, or `package:name/folder` of an
    installed package."""
    attention: Attention = "auto"
    """Implementation of attention in transformers; auto takes sdpa where the model has it."""
    lora: Lora | None = Lora()
    """Low-rank adapters to train; null trains all weights."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Number format of the pretrained weights; adapters are always fp32."""
    gradient_checkpointing: bool = False
    """Whether the backward pass recomputes each layer: less memory, about a third more time."""

    @model_validator(mode="after")
    def _whole_training_is_in_fp32(self) -> Config:
        if self.lora is None and self.dtype == "bf16":
            raise ValueError(
                "to train all weights, dtype must be fp32: most updates are too small for bf16 "
                "to hold; "
                "training.precision: bf16 computes in it"
            )
        return self

    @property
    def schedule(self) -> Schedule:
        return schedule_with(self.lora)


def check(config: Config, task: NamedSection, data_root: Path | None) -> None:
    """Refuse tasks other than instructions, and models that are not available."""
    if not isinstance(task, AlpacaConfig):
        raise UserError(
            f"task.name = '{task.name}': model causal answers instructions; set task.name to alpaca"
        )
    hub.check(config.source, data_root)


def build(config: Config, task: Task, data_root: Path | None) -> Causal:
    """A causal language model for a task that uses its tokenizer."""
    from cudt.models.causal_network import DTYPES, Causal, check_head, decode_plainly

    assert isinstance(task, Alpaca)
    lm = hub.load_causal_lm(config.source, data_root, DTYPES[config.dtype], config.attention)
    check_vocabulary(task.tokenizer, lm.get_input_embeddings().num_embeddings, config.pretrained)
    check_head(lm, config.pretrained)
    decode_plainly(lm)
    model = Causal(lm, config)
    if model.context_length is not None and task.max_length > model.context_length:
        raise UserError(
            f"task.max_length = {task.max_length}: '{config.pretrained}' reads at most "
            f"{model.context_length} tokens; "
            "lower task.max_length"
        )
    return model
