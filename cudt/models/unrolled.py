"""UT, the unrolled transformer: each layer is a step of descent on an energy (Yang et al., 2022).

With tokens x_1 … x_T in the rows of X, a layer attends symmetrically and then steps through a ReLU:

    Z  = softmax(Y Yᵀ) X,  Y = X W₁ᵀ                  similar to a descent step on g₁
    X⁺ = ReLU(Z W_s),  W_s = (1−η)I − (η/2)(W₂ + W₂ᵀ)       a proximal gradient step on g₂

W_s contains the residual connection (1−η)I. The energies, and how much of the theory holds after
training, are in docs/method.md. `unrolled` reads texts, `unrolled_video` frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cudt.config import models as sections
from cudt.data import hub
from cudt.data.loader import Batch
from cudt.models.base import LayeredModel, Visit
from cudt.models.patches import PatchModel, overcomplete_dct, to_patches
from cudt.tasks.base import Task
from cudt.tasks.text import TextClassification
from cudt.utils.errors import UserError

Config = sections.Unrolled


# ---------------------------------------------------------------- the steps


class _Gram(torch.autograd.Function):
    """Y Yᵀ of each sequence, −∞ in the columns of padding.

    Its gradient (G + Gᵀ) Y is one product; autograd would take two. The softmax makes G zero in the
    columns of padding.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(y)
        products = y @ y.mT
        return products if mask is None else products.masked_fill_(~mask.unsqueeze(-2), -torch.inf)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (y,), (gradient,) = ctx.saved_tensors, gradients
        return (gradient + gradient.mT) @ y, None


def attention(y: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(Y Yᵀ), (sequences, T, T): attention with queries = keys = Y; padding is masked."""
    logits: Tensor = _Gram.apply(y, mask)  # type: ignore[no-untyped-call]
    return torch.softmax(logits, dim=-1)


def relu_step(z: Tensor, w2: Tensor, step_size: float) -> Tensor:
    """ReLU(W_s z) with W_s = (1−η)I − (η/2)(W₂ + W₂ᵀ), for each token."""
    identity = torch.eye(len(w2), dtype=w2.dtype, device=w2.device)
    # W_s is formed first, because it is smaller than z.
    return torch.relu_(z @ ((1 - step_size) * identity - (0.5 * step_size) * (w2 + w2.T)))


class UnrolledLayer(nn.Module):
    """X⁺ = ReLU(softmax(Y Yᵀ) X W_s) with Y = X W₁ᵀ; a module so that it can be compiled."""

    def __init__(self, step_size: float) -> None:
        super().__init__()
        self.step_size = step_size

    def forward(self, x: Tensor, w1: Tensor, w2: Tensor, mask: Tensor | None = None) -> Tensor:
        return relu_step(attention(x @ w1.T, mask) @ x, w2, self.step_size)


class _Unrolled(LayeredModel):
    """The layers of both models, and their weights W₁ and W₂: one pair, or one for each layer."""

    layer: UnrolledLayer
    w1: nn.ParameterList
    w2: nn.ParameterList

    def states(self, x: Tensor, mask: Tensor | None = None) -> Iterator[Tensor]:
        """X_1 … X_L."""
        for layer in range(self.n_layers):
            index = layer % len(self.w1)
            x = self.layer(x, self.w1[index], self.w2[index], mask)
            yield x

    def layer_modules(self) -> list[nn.Module]:
        return [self.layer]


# ---------------------------------------------------------------- text


class UnrolledTransformer(_Unrolled):
    """Word and position embeddings, L layers, and a linear readout of the mean over tokens."""

    def __init__(
        self, config: Config, words: nn.Embedding, max_length: int, n_classes: int
    ) -> None:
        super().__init__()
        self.n_layers = config.layers
        self.layer = UnrolledLayer(config.step_size)
        self.words = words
        width = words.embedding_dim
        self.positions = nn.Embedding(max_length, width)
        depth = range(1 if config.tie_layers else config.layers)
        narrow = (config.attention_width, width)
        self.w1 = nn.ParameterList(nn.Parameter(torch.empty(narrow)) for _ in depth)
        self.w2 = nn.ParameterList(nn.Parameter(torch.empty(width, width)) for _ in depth)
        self.head = nn.Linear(width, n_classes)
        for weight in (*self.w1, *self.w2, self.head.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.head.bias)

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.words(batch["input_ids"]), batch["attention_mask"].bool()

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        x = signal + self.positions.weight[: signal.shape[1]]
        for state in self.states(x, batch["attention_mask"].bool()):
            visit(state)

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        # As floats: products of floats and integers are slow.
        mask = batch["attention_mask"].unsqueeze(-1).to(state.dtype)
        return self.head((state * mask).sum(1) / mask.sum(1))

    def readout_weights(self) -> list[nn.Parameter]:
        return list(self.head.parameters())


def build(config: Config, task: Task, data_root: Path | None) -> UnrolledTransformer:
    """A UT for a text task, which gives the numbers of words, positions and classes."""
    try:
        n_words, *sizes = task.vocabulary_size, task.max_length, task.n_classes  # type: ignore[attr-defined]
    except AttributeError:
        raise UserError(
            "model unrolled needs a text task: set task.name to reviews, imdb, mnli or text"
        ) from None
    if config.source is None:
        return UnrolledTransformer(config, nn.Embedding(n_words, config.width or 64), *sizes)
    if not isinstance(task, TextClassification):
        raise UserError(
            "model.embeddings_from: this task has a vocabulary of its own; remove the key"
        )
    encoder = hub.load_model("AutoModel", config.source, data_root)
    weights = encoder.get_input_embeddings().weight.detach()
    if config.width not in (None, weights.shape[1]):
        raise UserError(
            f"model.width: embeddings of '{config.source}' have {weights.shape[1]}; remove the key"
        )
    words = nn.Embedding.from_pretrained(weights.clone(), freeze=False)
    model = UnrolledTransformer(config, words, *sizes)
    # Pretrained embeddings are small: positions drawn from N(0, 1) would dominate them.
    nn.init.normal_(model.positions.weight, std=words.weight.std().item())
    return model


# ---------------------------------------------------------------- video


class UnrolledVideo(PatchModel, _Unrolled):
    """L unrolled layers on the patches of one position over T frames; a state is a reconstruction.

    Weights start from cosines, like DUST's: W₁ = Dᵀ/‖D‖, so that attention compares cosine
    coefficients, and W₂ = −I, so that W_s = I and a layer first passes on the output of attention.
    Only attention depends on the unit of the pixels (`model.attention_unit`).
    """

    def __init__(self, config: sections.UnrolledVideo, task: Task) -> None:
        super().__init__(config, task)
        self.layer, self.unit = UnrolledLayer(config.step_size), config.attention_unit
        start = overcomplete_dct(config.patch, config.atoms)
        start = start.T / torch.linalg.matrix_norm(start, 2)
        depth = range(1 if config.tie_layers else config.layers)
        self.w1 = nn.ParameterList(nn.Parameter(start.clone()) for _ in depth)
        self.w2 = nn.ParameterList(nn.Parameter(-torch.eye(config.patch**2)) for _ in depth)

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        for state in self.states(to_patches(signal, self.patch) / self.unit):
            visit(self.unit * state)


def video(config: sections.UnrolledVideo, task: Task, data_root: Path | None) -> UnrolledVideo:
    """A UT for frames of the task's size."""
    return UnrolledVideo(config, task)
