"""The result of measuring a model on a data set: losses and scores of every example at every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Measurement:
    """Losses and scores of every example at every layer, (layers, examples), with the examples' weights and ids."""

    losses: Tensor
    scores: Tensor
    weights: Tensor
    ids: list[str]

    @classmethod
    def joined(cls, parts: Sequence[Measurement]) -> Measurement:
        """One measurement of the examples of all parts."""
        columns = ([part.losses, part.scores, part.weights] for part in parts)
        losses, scores, weights = (torch.cat(column, -1) for column in zip(*columns, strict=True))
        return cls(losses, scores, weights, [example_id for part in parts for example_id in part.ids])

    @property
    def layer_losses(self) -> Tensor:
        """f_1 … f_L: the weighted mean loss of each layer."""
        return self.losses @ self.weights / self.weights.sum()

    @property
    def layer_scores(self) -> Tensor:
        """The weighted mean score of each layer."""
        return self.scores @ self.weights / self.weights.sum()
