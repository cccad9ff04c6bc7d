"""The network of UT for text (unrolled.py has its equations)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cudt.data.loader import Batch
from cudt.models.base import LayeredModel, Visit, embedded_shape
from cudt.models.unrolled import Config
from cudt.models.unrolled_steps import UnrolledLayer
from cudt.noise import SignalShape


class UnrolledTransformer(LayeredModel):
    """Word and position embeddings, L unrolled layers, and one linear readout of the mean over
    tokens.
    """

    def __init__(
        self, config: Config, words: nn.Embedding, max_length: int, n_classes: int
    ) -> None:
        super().__init__()
        self.n_layers = config.layers
        self.layer = UnrolledLayer(config.step_size)
        self.words = words
        width = words.embedding_dim
        self.positions = nn.Embedding(max_length, width)
        depth = 1 if config.tie_layers else config.layers
        self.w1 = nn.ParameterList(
            nn.Parameter(torch.empty(config.attention_width, width)) for _ in range(depth)
        )
        self.w2 = nn.ParameterList(nn.Parameter(torch.empty(width, width)) for _ in range(depth))
        self.head = nn.Linear(width, n_classes)
        for weight in (*self.w1, *self.w2, self.head.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.head.bias)

    def layer_weights(self, layer: int) -> tuple[Tensor, Tensor]:
        """W₁ and W₂ of a layer, counted from 0."""
        index = layer % len(self.w1)
        return self.w1[index], self.w2[index]

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.words(batch["input_ids"]), batch["attention_mask"].bool()

    def signal_shape(self, batch: Batch) -> SignalShape:
        return embedded_shape(batch, self.words)

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        mask = batch["attention_mask"].bool()
        x = signal + self.positions.weight[: signal.shape[1]]
        for layer in range(self.n_layers):
            w1, w2 = self.layer_weights(layer)
            x = self.layer(x, w1, w2, mask)
            visit(x)

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        # As floats: products of floats and integers are slow.
        mask = batch["attention_mask"].unsqueeze(-1).to(state.dtype)
        return self.head((state * mask).sum(1) / mask.sum(1))

    def layer_modules(self) -> list[nn.Module]:
        return [self.layer]

    def readout_weights(self) -> list[nn.Parameter]:
        return list(self.head.parameters())
