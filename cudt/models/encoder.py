"""A pretrained text encoder of transformers (DistilBERT, BERT, RoBERTa, any AutoModel) with one
linear readout for all layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from cudt.config import models as sections
from cudt.data import hub
from cudt.data.loader import Batch
from cudt.models.pretrained import PretrainedText, save_encoder, with_adapters
from cudt.tasks.base import Task
from cudt.tasks.text import TextClassification
from cudt.utils.errors import UserError

Config = sections.Encoder


class Encoder(PretrainedText):
    """An encoder, and a linear readout of its first token or of the mean over its tokens."""

    def __init__(self, encoder: Any, n_classes: int, readout: Literal["first", "mean"]) -> None:
        if hasattr(encoder, "pooler"):
            # The readout replaces it, so that its weights would get no gradient.
            encoder.pooler = None
        super().__init__(encoder)
        self._pools = readout == "mean"
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, n_classes)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        state = self.normed(state)
        if not self._pools:
            return self.head(state[:, 0])
        mask = batch["attention_mask"].unsqueeze(-1)
        return self.head((state * mask).sum(1) / mask.sum(1))

    def readout_weights(self) -> list[nn.Parameter]:
        return list(self.head.parameters())

    def save_pretrained(self, folder: Path) -> str:
        return save_encoder(self.encoder, self.head, folder)


def build(config: Config, task: Task, data_root: Path | None) -> Encoder:
    """An encoder for a text task that uses its tokenizer."""
    if not isinstance(task, TextClassification):
        raise UserError("model encoder classifies texts: set task.name to imdb, mnli or text")
    encoder = hub.load_model("AutoModel", config.source, data_root, config.attention)
    # Stored with the saved encoder, so that its classes are known without cudt.
    encoder.config.id2label = dict(enumerate(map(str, task.classes)))
    model = Encoder(encoder, task.n_classes, config.readout)
    if config.lora is not None:
        model.encoder = with_adapters(encoder, config.lora, config.source)
        model.signal_is_learned = False
    return model
