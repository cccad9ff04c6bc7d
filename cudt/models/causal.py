"""A pretrained causal language model of transformers (Llama, SmolLM, any with a linear head).

It is fine-tuned in full or with LoRA. The readout of every layer is the model's own final norm and head. Logits are
computed in chunks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from cudt.config.schema import (
    FINE_TUNING,
    Count,
    ModelSection,
    NamedSection,
    Positive,
    Schedule,
    Section,
    WordOrWords,
)
from cudt.data import hub
from cudt.data.batching import Batch
from cudt.data.text_checks import check_vocabulary
from cudt.models.base import Visit
from cudt.models.watched import WatchedText
from cudt.tasks.alpaca import Alpaca
from cudt.tasks.alpaca import Config as AlpacaConfig
from cudt.tasks.base import IGNORED, Task
from cudt.tasks.prompts import prompt_text
from cudt.tasks.token_logits import TokenLogits
from cudt.utils.errors import UserError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: Python code that loads what `save_pretrained` wrote, with class `loader` of `library`.
_SNIPPET = """\
from {library} import {loader}
from transformers import AutoTokenizer
model, tokenizer = {loader}.from_pretrained("FOLDER"), AutoTokenizer.from_pretrained("FOLDER")
prompt = tokenizer({prompt!r}, return_tensors="pt")
text = tokenizer.decode(model.generate(**prompt, max_new_tokens=64, do_sample=False)[0], skip_special_tokens=True)
"""


class Lora(Section):
    """Low-rank adapters; the defaults are the paper's."""

    rank: Count = 6
    """Rank of the adapters."""
    alpha: Positive = 8.0
    """Scale of the adapters: updates are multiplied by alpha/rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Probability that an input of an adapter is dropped in training."""
    targets: WordOrWords = "all-linear"
    """Modules with adapters: `all-linear`, `default` (what peft adapts; queries and values of Llama), or names."""

    @field_validator("targets")
    @classmethod
    def _are_known(cls, targets: str | list[str]) -> str | list[str]:
        if isinstance(targets, str) and targets not in ("all-linear", "default"):
            raise ValueError("must be all-linear, default, or a list of names of modules")
        return targets


class Config(ModelSection):
    """A pretrained causal language model, and which of its weights are trained."""

    generates_text = True

    pretrained: str
    """Pretrained model: a name on the Hugging Face hub, a folder, or `package:name/folder` of an installed package."""
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
                "to train all weights, dtype must be fp32: most updates are too small for bf16 to hold; "
                "training.precision: bf16 computes in it"
            )
        return self

    @property
    def schedule(self) -> Schedule:
        """Adapters start at 0 and have few weights, so they take larger steps than a whole model."""
        return FINE_TUNING if self.lora is None else Schedule(2e-4, FINE_TUNING.warmup_share)

    @property
    def tokenizer_source(self) -> str:
        return self.pretrained


class Causal(WatchedText):
    """A causal language model; `lm` is the model with its head, wrapped by peft if adapters are trained."""

    context_length: int | None
    """The most tokens it can read; None if its configuration does not say."""

    def __init__(self, lm: Any, config: Config) -> None:
        super().__init__(lm.get_decoder(), use_cache=False)
        self.context_length = getattr(lm.config.get_text_config(), "max_position_embeddings", None)
        self._is_adapted = config.lora is not None
        self.signal_is_learned = not self._is_adapted
        self._head: tuple[nn.Linear] = (lm.get_output_embeddings(),)
        self._recomputes = config.gradient_checkpointing
        try:
            if self._recomputes:
                lm.gradient_checkpointing_enable({"use_reentrant": False})
            self.lm = lm if config.lora is None else _with_adapters(lm, config.lora)
        except ValueError as error:
            raise UserError(f"model '{config.pretrained}', {type(lm).__name__}: {error}") from None

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        if not (self._recomputes and self.training):
            super().visit_layers(signal, batch, visit)
            return
        # The backward pass runs layers again. They must not be read again, because the readout is not part of them.
        states: list[Tensor] = []
        super().visit_layers(signal, batch, states.append)
        for state in states:
            visit(state)

    def readout(self, state: Tensor, batch: Batch) -> TokenLogits:
        """The logits at the tokens with a label, in order."""
        return TokenLogits(self.normed(state[batch["labels"] != IGNORED]), self._head[0])

    def save_pretrained(self, folder: Path) -> str:
        """Save a model for transformers, or an adapter for peft."""
        prompt = prompt_text("Name a colour.", "")
        if self._is_adapted:
            # The default "auto" would ask the hub whether the vocabulary has grown.
            self.lm.save_pretrained(folder, save_embedding_layers=False)
            return _SNIPPET.format(library="peft", loader="AutoPeftModelForCausalLM", prompt=prompt)
        self.lm.save_pretrained(folder)
        return _SNIPPET.format(library="transformers", loader="AutoModelForCausalLM", prompt=prompt)


def _with_adapters(lm: Any, lora: Lora) -> Any:
    # Imported here: it imports all of transformers, which takes seconds and may need utils/compat.py first.
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=None if lora.targets == "default" else lora.targets,
    )
    return get_peft_model(lm, config)


def check(config: Config, task: NamedSection, data_root: Path | None) -> None:
    """Refuse tasks other than instructions, and models that are not available."""
    if not isinstance(task, AlpacaConfig):
        raise UserError(f"task.name = '{task.name}': model causal answers instructions; set task.name to alpaca")
    hub.check(config.pretrained, data_root)


def build(config: Config, task: Task, data_root: Path | None) -> Causal:
    """A causal language model for a task that uses its tokenizer."""
    assert isinstance(task, Alpaca)
    lm = hub.load_causal_lm(config.pretrained, data_root, _DTYPES[config.dtype])
    check_vocabulary(task.tokenizer, lm.get_input_embeddings().num_embeddings, config.pretrained)
    _check_head(lm, config.pretrained)
    _decode_plainly(lm)
    model = Causal(lm, config)
    if model.context_length is not None and task.max_length > model.context_length:
        raise UserError(
            f"task.max_length = {task.max_length}: '{config.pretrained}' reads at most {model.context_length} tokens; "
            "lower task.max_length"
        )
    return model


def _decode_plainly(lm: Any) -> None:
    """Reset the model's generation settings (penalties, beams, temperature), which were tuned for other weights."""
    from transformers import GenerationConfig

    lm.generation_config = GenerationConfig.from_model_config(lm.config)


@torch.no_grad()
def _check_head(lm: Any, name: str) -> None:
    """Refuse a model whose head is more than one linear map: cudt's readout would differ from the model's own."""
    head, tokens = lm.get_output_embeddings(), torch.arange(5).unsqueeze(0)
    if not isinstance(head, nn.Linear):
        raise UserError(f"model '{name}': {type(lm).__name__} has no linear head; choose a model that has one")
    own = lm.eval()(input_ids=tokens, use_cache=False).logits
    read = head(lm.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state)
    # Capping hardly changes small logits, so it shows only in the configuration.
    caps = getattr(lm.config.get_text_config(), "final_logit_softcapping", None)
    if caps or (own - read).abs().max() > 1e-2 * read.abs().max():
        raise UserError(
            f"model '{name}': the head of {type(lm).__name__} is more than one linear map (it scales or caps its "
            "logits), which cudt's readout does not do; choose another model"
        )
