"""A pretrained text encoder of transformers (DistilBERT, BERT, RoBERTa, any AutoModel) with one
linear readout.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config import models as sections
from cudt.data import hub
from cudt.data.hub import check_vocabulary
from cudt.tasks.text import TextClassification
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.models.encoder_network import Encoder
    from cudt.tasks.base import Task


Config = sections.Encoder


def build(config: Config, task: Task, data_root: Path | None) -> Encoder:
    """An encoder for a text task that uses its tokenizer."""
    from cudt.models.encoder_network import Encoder, try_out

    if not isinstance(task, TextClassification):
        raise UserError("model encoder classifies texts: set task.name to imdb, mnli or text")
    encoder = hub.load_encoder(config.source, data_root, config.attention)
    check_vocabulary(
        task.tokenizer, encoder.get_input_embeddings().num_embeddings, config.pretrained
    )
    # Stored with the saved encoder, so that its classes are known without cudt.
    encoder.config.id2label = {number: str(label) for number, label in enumerate(task.classes)}
    encoder.config.label2id = {str(label): number for number, label in enumerate(task.classes)}
    model = Encoder(encoder, task.n_classes, config.readout, task.has_pairs)
    try_out(model, config, task.max_length)
    if config.lora is not None:
        model.adapt(config.lora, config.source)
    return model
