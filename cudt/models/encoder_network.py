"""The network of a pretrained text encoder with one linear readout."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cudt.config.models import Lora, PretrainedName
from cudt.data.loader import Batch
from cudt.models.adapters import with_adapters
from cudt.models.encoder import Config
from cudt.models.saved_encoder import loading_lines, save_encoder, save_readout
from cudt.models.watched import WatchedText, tried_out
from cudt.utils.errors import UserError

#: Python code that loads what `save_pretrained` wrote. One text without padding, so the mean is
#: over its own tokens.
_SNIPPET = """\
import torch
{peft}from safetensors.torch import load_file
from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
{load}
readout = load_file("FOLDER/readout.safetensors")
with torch.no_grad():
    state = encoder(**tokenizer({texts}, return_tensors="pt")).last_hidden_state.{state}
logits = state @ readout["weight"].T + readout["bias"]
label = encoder.config.id2label[logits.argmax().item()]
"""


class Encoder(WatchedText):
    """An encoder and one linear readout for all layers."""

    def __init__(
        self,
        encoder: Any,
        n_classes: int,
        readout: Literal["first", "mean"],
        reads_pairs: bool = False,
    ):
        # The readout replaces the pooler, whose weights would get no gradient.
        has_pooler = getattr(encoder, "pooler", None) is not None
        if has_pooler:
            encoder.pooler = None
        super().__init__(encoder)
        self._lost_pooler = has_pooler
        self._reads_pairs = reads_pairs
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, n_classes)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        self._pools = readout == "mean"

    def adapt(self, lora: Lora, source: PretrainedName) -> None:
        """Train adapters and the readout from now on, and no other weights; the encoder was loaded
        from `source`.
        """
        self.encoder = with_adapters(self.encoder, lora, source)
        self.signal_is_learned = False

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        state = self.normed(state)
        if not self._pools:
            return self.head(state[:, 0])
        mask = batch["attention_mask"].unsqueeze(-1)
        return self.head((state * mask).sum(1) / mask.sum(1))

    def readout_weights(self) -> list[nn.Parameter]:
        return list(self.head.parameters())

    def save_pretrained(self, folder: Path) -> str:
        """Save the encoder for transformers or its adapters for peft, and the readout in
        readout.safetensors.
        """
        save_encoder(self.encoder, folder)
        save_readout(self.head, folder)
        return _SNIPPET.format(
            texts='"a text", "the other text of the pair"' if self._reads_pairs else '"a text"',
            state="mean(1)" if self._pools else "select(1, 0)",
            **loading_lines(self.encoder, without_pooler=self._lost_pooler),
        )


def try_out(model: Encoder, config: Config, length: int) -> None:
    """Run texts of full length, and refuse what would fail or could not learn."""
    last = tried_out(model, length, config.pretrained, "task.max_length")
    if config.readout == "first" and torch.equal(last[0, 0], last[1, 0]):
        raise UserError(
            f"model.readout = 'first': the first token of '{config.pretrained}' does not attend "
            "to the others; "
            "set model.readout to mean"
        )
