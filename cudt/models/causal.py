"""A pretrained causal language model of transformers (Llama, SmolLM, any with a linear head),
fine-tuned in full or with LoRA.

The readout of every layer is the model's own final norm and head; losses are computed in chunks of
tokens (vocabulary.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cudt.config import models as sections
from cudt.data import hub
from cudt.data.loader import Batch
from cudt.models.base import Visit
from cudt.models.pretrained import PretrainedText, loading, save_adapters, with_adapters
from cudt.models.vocabulary import TokenLogits, positions
from cudt.tasks.alpaca import Alpaca
from cudt.tasks.base import Task
from cudt.utils.errors import UserError

Config = sections.Causal


class Causal(PretrainedText):
    """A causal language model with its head, `lm`, in peft's wrapper if adapters are trained."""

    def __init__(self, lm: Any, config: Config) -> None:
        super().__init__(lm.get_decoder(), use_cache=False)
        self.context_length: int | None = getattr(
            lm.config.get_text_config(), "max_position_embeddings", None
        )
        """The most tokens it can read; None if its configuration does not say."""
        self.signal_is_learned = config.lora is None
        self._head: tuple[nn.Linear] = (lm.get_output_embeddings(),)
        self._recomputes = config.gradient_checkpointing
        if self._recomputes:
            lm.gradient_checkpointing_enable({"use_reentrant": False})
        if config.lora is not None:
            lm = with_adapters(lm, config.lora, config.source, "CAUSAL_LM")
        self.lm = lm

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        if not (self._recomputes and self.training):
            super().visit_layers(signal, batch, visit)
            return
        # The backward pass runs layers again, but not what reads them: so they are read after it.
        states: list[Tensor] = []
        super().visit_layers(signal, batch, states.append)
        for state in states:
            visit(state)

    def readout(self, state: Tensor, batch: Batch) -> TokenLogits:
        """The logits at the tokens with a label, in order."""
        return TokenLogits(self.normed(state.flatten(0, 1)[positions(batch)]), self._head[0])

    def readout_weights(self) -> list[nn.Parameter]:
        """The head, unless it is frozen or shared with the embeddings."""
        words = self._backbone[0].get_input_embeddings().weight
        weights = self._head[0].parameters()
        return [one for one in weights if one.requires_grad and one is not words]

    def save_pretrained(self, folder: Path) -> str:
        if not self.signal_is_learned:
            save_adapters(self.lm, folder)
            return loading("peft", "AutoPeftModelForCausalLM")
        self.lm.save_pretrained(folder)
        return loading("transformers", "AutoModelForCausalLM")


def build(config: Config, task: Task, data_root: Path | None) -> Causal:
    """A causal language model for a task that uses its tokenizer."""
    from transformers import GenerationConfig  # takes long, and may need torchvision repaired first

    if not isinstance(task, Alpaca):
        raise UserError("model causal answers instructions: set task.name to alpaca")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[config.dtype]
    source, attention = config.source, config.attention
    lm = hub.load_model("AutoModelForCausalLM", source, data_root, attention, dtype)
    if not has_linear_head(lm):
        raise UserError(
            f"model '{config.pretrained}': the head of {type(lm).__name__} is not one matrix (it "
            "scales or caps its logits, or has a bias); choose another model"
        )
    # Without penalties, beams and temperatures that were tuned for other weights.
    lm.generation_config = GenerationConfig.from_model_config(lm.config)
    model = Causal(lm, config)
    if model.context_length is not None and task.max_length > model.context_length:
        raise UserError(
            f"task.max_length = {task.max_length}: '{config.pretrained}' reads at most "
            f"{model.context_length} tokens; lower task.max_length"
        )
    return model


@torch.no_grad()
def has_linear_head(lm: Any) -> bool:
    """Whether the logits of a causal LM are one matrix times its decoder's last state."""
    head, tokens = lm.get_output_embeddings(), torch.arange(5, device=lm.device).unsqueeze(0)
    # Capping hardly changes small logits, so it shows only in the configuration.
    is_capped = getattr(lm.config.get_text_config(), "final_logit_softcapping", None)
    if is_capped or not isinstance(head, nn.Linear) or head.bias is not None:
        return False
    own = lm.eval()(input_ids=tokens, use_cache=False).logits
    read = head(lm.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state)
    return bool((own - read).abs().max() <= 1e-2 * read.abs().max())
