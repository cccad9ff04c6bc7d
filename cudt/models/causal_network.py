"""The network of a causal language model whose layers are read by its own final norm and head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cudt.data.loader import Batch
from cudt.models.adapters import save_adapters, with_adapters
from cudt.models.base import Visit
from cudt.models.causal import Config
from cudt.models.watched import WatchedText
from cudt.tasks.alpaca import prompt_text
from cudt.tasks.labelled import positions
from cudt.tasks.token_logits import TokenLogits
from cudt.utils.errors import UserError

#: The number formats of weights, by their names in a recipe.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: Python code that loads what `save_pretrained` wrote, with class `loader` of `library`.
_SNIPPET = """\
from {library} import {loader}
from transformers import AutoTokenizer
model = {loader}.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
prompt = tokenizer({prompt!r}, return_tensors="pt")
text = tokenizer.decode(model.generate(**prompt, max_new_tokens=64, do_sample=False)[0], skip_special_tokens=True)
"""


class Causal(WatchedText):
    """A causal language model; `lm` is the model with its head, wrapped by peft if adapters are
    trained.
    """

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
        except ValueError as error:
            raise UserError(f"model '{config.pretrained}', {type(lm).__name__}: {error}") from None
        self.lm = (
            lm
            if config.lora is None
            else with_adapters(lm, config.lora, config.source, "CAUSAL_LM")
        )

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        if not (self._recomputes and self.training):
            super().visit_layers(signal, batch, visit)
            return
        # The backward pass runs layers again. They must not be read again, because the readout is
        # not part of them.
        states: list[Tensor] = []
        super().visit_layers(signal, batch, states.append)
        for state in states:
            visit(state)

    def readout(self, state: Tensor, batch: Batch) -> TokenLogits:
        """The logits at the tokens with a label, in order."""
        return TokenLogits(self.normed(state.flatten(0, 1)[positions(batch)]), self._head[0])

    def readout_weights(self) -> list[nn.Parameter]:
        """The head, unless it is frozen or shared with the embeddings."""
        embeddings = set(self._backbone[0].get_input_embeddings().parameters())
        return [
            weight
            for weight in self._head[0].parameters()
            if weight.requires_grad and weight not in embeddings
        ]

    def save_pretrained(self, folder: Path) -> str:
        """Save a model for transformers, or an adapter for peft."""
        prompt = prompt_text("Name a colour.", "")
        if self._is_adapted:
            save_adapters(self.lm, folder)
            return _SNIPPET.format(library="peft", loader="AutoPeftModelForCausalLM", prompt=prompt)
        self.lm.save_pretrained(folder)
        return _SNIPPET.format(library="transformers", loader="AutoModelForCausalLM", prompt=prompt)


def decode_plainly(lm: Any) -> None:
    """Reset the model's generation settings (penalties, beams, temperature), which were tuned for
    other weights.
    """
    from transformers import GenerationConfig

    lm.generation_config = GenerationConfig.from_model_config(lm.config)


def check_head(lm: Any, name: str) -> None:
    """Refuse a model whose head is more than one linear map: cudt's readout would differ from the
    model's own.
    """
    if not isinstance(lm.get_output_embeddings(), nn.Linear):
        raise UserError(
            f"model '{name}': {type(lm).__name__} has no linear head; choose a model that has one"
        )
    if not has_linear_head(lm):
        raise UserError(
            f"model '{name}': the head of {type(lm).__name__} is more than one linear map (it "
            "scales or caps its "
            "logits), which cudt's readout does not do; choose another model"
        )


@torch.no_grad()
def has_linear_head(lm: Any) -> bool:
    """Whether the logits of a causal language model are one linear map of its decoder's last
    state.
    """
    head, tokens = lm.get_output_embeddings(), torch.arange(5, device=lm.device).unsqueeze(0)
    if not isinstance(head, nn.Linear):
        return False
    # Capping hardly changes small logits, so it shows only in the configuration.
    if getattr(lm.config.get_text_config(), "final_logit_softcapping", None):
        return False
    own = lm.eval()(input_ids=tokens, use_cache=False).logits
    read = head(lm.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state)
    return bool((own - read).abs().max() <= 1e-2 * read.abs().max())
