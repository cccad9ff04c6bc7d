"""The classifier of recipe imdb-minilm without cudt: an encoder, the mean over tokens, and a linear
readout.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, DataCollatorWithPadding


class MeanPooled(nn.Module):
    """Two classes from the mean state of the last layer; with a readout if the folder has one."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        self.head = nn.Linear(self.encoder.config.hidden_size, 2)
        if (readout := Path(folder) / "readout.safetensors").is_file():
            self.head.load_state_dict(load_file(readout))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        state = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1)
        logits = self.head((state * mask).sum(1) / mask.sum(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def read_rows(file: str) -> list[dict[str, Any]]:
    """Examples with `input_ids` and `labels`."""
    return json.loads(Path(file).read_text(encoding="utf-8"))


def collator(folder: str) -> DataCollatorWithPadding:
    """Pads a batch to its longest example, as most programs with Trainer do."""
    return DataCollatorWithPadding(AutoTokenizer.from_pretrained(folder))


def accuracy(predictions: Any) -> float:
    """The share of right classes in what Trainer.predict returned."""
    return float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())
