"""UT, the unrolled transformer for text: each layer is a step of descent on an energy (Yang et al.,
2022).

With tokens x_1 … x_T in the rows of X, a layer attends symmetrically and then steps through a ReLU:

    Z  = softmax(Y Yᵀ) X,  Y = X W₁ᵀ                        similar to a descent step on g₁ (`attention_energy`)
    X⁺ = ReLU(Z W_s),  W_s = (1−η)I − (η/2)(W₂ + W₂ᵀ)       a proximal gradient step of size η on g₂ (`relu_energy`)

W_s contains the residual connection (1−η)I. What theory guarantees for the two steps, and how much
of it holds after training, is in docs/background/energies.md.
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
    from torch import nn

    from cudt.models.unrolled_network import UnrolledTransformer
    from cudt.tasks.base import Task


Config = sections.Unrolled


def build(config: Config, task: Task, data_root: Path | None) -> UnrolledTransformer:
    """A UT for a text task, which gives the numbers of words, positions and classes."""
    from torch import nn

    from cudt.models.unrolled_network import UnrolledTransformer

    try:
        sizes = {
            name: getattr(task, name) for name in ("vocabulary_size", "max_length", "n_classes")
        }
    except AttributeError:
        raise UserError(
            "model unrolled needs a text task: set task.name to reviews, imdb, mnli or text"
        ) from None
    if config.embeddings_from is not None and not isinstance(task, TextClassification):
        raise UserError(
            "model.embeddings_from: this task has its own vocabulary, which a pretrained encoder "
            "does not share; "
            "remove the key, or set task.name to imdb, mnli or text"
        )
    words = _words(config, sizes.pop("vocabulary_size"), data_root)
    if isinstance(task, TextClassification) and config.embeddings_from is not None:
        check_vocabulary(task.tokenizer, words.num_embeddings, config.embeddings_from)
    model = UnrolledTransformer(config, words, **sizes)
    if config.embeddings_from is not None:
        # Pretrained embeddings are small: positions drawn from N(0, 1) would dominate them.
        nn.init.normal_(model.positions.weight, std=words.weight.std().item())
    return model


def _words(config: Config, vocabulary_size: int, data_root: Path | None) -> nn.Embedding:
    """The word embeddings: random, or a trainable copy of a pretrained encoder's."""
    from torch import nn

    if config.source is None:
        return nn.Embedding(vocabulary_size, config.width or 64)
    weights = hub.load_encoder(config.source, data_root).get_input_embeddings().weight.detach()
    if config.width not in (None, width := weights.shape[1]):
        raise UserError(
            f"model.width = {config.width}: embeddings of '{config.embeddings_from}' have width "
            f"{width}; "
            f"set model.width to {width}, or remove it"
        )
    return nn.Embedding.from_pretrained(weights.clone(), freeze=False)
