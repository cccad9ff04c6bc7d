"""A pretrained text encoder of transformers (DistilBERT, BERT, RoBERTa, any AutoModel) with one
linear readout for all layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cudt.config import models as sections
from cudt.config.models import Lora, PretrainedName
from cudt.data import hub
from cudt.data.loader import Batch
from cudt.models.pretrained import PretrainedText, save_encoder, with_adapters
from cudt.tasks.base import Task
from cudt.tasks.text import TextClassification
from cudt.utils.errors import UserError

Config = sections.Encoder

#: Python code that uses what `save_pretrained` wrote. One text without padding, so the mean is over
#: its own tokens.
_SNIPPET = """\
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer
{load}
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
readout = load_file("FOLDER/readout.safetensors")
with torch.no_grad():
    state = encoder(**tokenizer({texts}, return_tensors="pt")).last_hidden_state.{state}
logits = state @ readout["weight"].T + readout["bias"]
label = AutoConfig.from_pretrained("FOLDER").id2label[logits.argmax().item()]
"""


class Encoder(PretrainedText):
    """An encoder, and a linear readout of its first token or of the mean over its tokens."""

    def __init__(
        self,
        encoder: Any,
        n_classes: int,
        readout: Literal["first", "mean"],
        reads_pairs: bool = False,
    ) -> None:
        if hasattr(encoder, "pooler"):
            # The readout replaces it, so that its weights would get no gradient.
            encoder.pooler = None
        super().__init__(encoder)
        self._reads_pairs = reads_pairs
        self._pools = readout == "mean"
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, n_classes)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def adapt(self, lora: Lora, source: PretrainedName) -> None:
        """Train adapters and the readout from now on, and no other weights."""
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
        return _SNIPPET.format(
            load=save_encoder(self.encoder, self.head, folder),
            texts='"a text", "the other text of the pair"' if self._reads_pairs else '"a text"',
            state="mean(1)" if self._pools else "select(1, 0)",
        )


def build(config: Config, task: Task, data_root: Path | None) -> Encoder:
    """An encoder for a text task that uses its tokenizer."""
    if not isinstance(task, TextClassification):
        raise UserError("model encoder classifies texts: set task.name to imdb, mnli or text")
    encoder = hub.load_encoder(config.source, data_root, config.attention)
    # Stored with the saved encoder, so that its classes are known without cudt.
    encoder.config.id2label = {number: str(label) for number, label in enumerate(task.classes)}
    encoder.config.label2id = {str(label): number for number, label in enumerate(task.classes)}
    model = Encoder(encoder, task.n_classes, config.readout, task.has_pairs)
    _try_out(model, config, task.max_length)
    if config.lora is not None:
        model.adapt(config.lora, config.source)
    return model


@torch.no_grad()
def _try_out(model: Encoder, config: Config, length: int) -> None:
    """Run two texts of full length that differ in their last token, and refuse what would fail or
    could not learn.
    """
    tokens = torch.ones(2, length, dtype=torch.long)
    tokens[:, 1:] += torch.arange(length - 1) % 3
    tokens[1, -1] += 1
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    try:
        last = model.layer_states(model.signal(batch)[0], batch)[-1]
    except (IndexError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"task.max_length = {length}: too many tokens for '{config.pretrained}' ({reason}); "
            "lower task.max_length"
        ) from None
    if config.readout == "first" and torch.equal(last[0, 0], last[1, 0]):
        raise UserError(
            f"model.readout = 'first': the first token of '{config.pretrained}' does not attend "
            "to the others; set model.readout to mean"
        )
