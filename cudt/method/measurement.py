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
    input_scores: Tensor | None = None
    """The score of each example's noisy input as an answer, (examples,); None for tasks where it is none."""

    @classmethod
    def joined(cls, parts: Sequence[Measurement]) -> Measurement:
        """One measurement of the examples of all parts."""
        columns = ([part.losses, part.scores, part.weights] for part in parts)
        losses, scores, weights = (torch.cat(column, -1) for column in zip(*columns, strict=True))
        inputs = [part.input_scores for part in parts if part.input_scores is not None]
        ids = [example_id for part in parts for example_id in part.ids]
        return cls(losses, scores, weights, ids, torch.cat(inputs) if inputs else None)

    def grouped(self, names: Sequence[str]) -> Measurement:
        """One row for all examples of the same name, with their weighted mean and their total weight.

        The means over all examples stay the same. Standard errors need it: an example measured with two noise seeds is
        still one example.
        """
        unique = sorted(set(names))
        numbers = {name: number for number, name in enumerate(unique)}
        index = torch.tensor([numbers[name] for name in names])
        weights = self.weights.new_zeros(len(unique)).index_add(0, index, self.weights)
        losses, scores = (
            # Examples that do not count have weight 0.
            values.new_zeros(len(values), len(unique)).index_add(1, index, values * self.weights)
            / weights.clamp_min(torch.finfo(weights.dtype).tiny)
            for values in (self.losses, self.scores)
        )
        return Measurement(losses, scores, weights, unique)

    @property
    def layer_losses(self) -> Tensor:
        """f_1 … f_L: the weighted mean loss of each layer."""
        return self.losses @ self.weights / self.weights.sum()

    @property
    def layer_scores(self) -> Tensor:
        """The weighted mean score of each layer."""
        return self.scores @ self.weights / self.weights.sum()

    @property
    def input_score(self) -> float | None:
        """The weighted mean score of the noisy inputs."""
        return None if self.input_scores is None else (self.input_scores @ self.weights / self.weights.sum()).item()
