"""What was measured of a model: the losses and scores of every example at every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Measurement:
    """Losses and scores of every example at every layer, (layers, examples), how much each counts, and which it is."""

    losses: Tensor
    scores: Tensor
    weights: Tensor
    ids: list[str]

    @classmethod
    def joined(cls, parts: Sequence[Measurement]) -> Measurement:
        """The measurement of all the examples of the parts."""
        columns = ([part.losses, part.scores, part.weights] for part in parts)
        losses, scores, weights = (torch.cat(column, -1) for column in zip(*columns, strict=True))
        return cls(losses, scores, weights, [example_id for part in parts for example_id in part.ids])

    @property
    def layer_losses(self) -> Tensor:
        """f_1 … f_L."""
        return self.losses @ self.weights / self.weights.sum()

    @property
    def layer_scores(self) -> Tensor:
        return self.scores @ self.weights / self.weights.sum()
