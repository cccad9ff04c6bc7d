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

    @classmethod
    def averaged(cls, parts: Sequence[Measurement]) -> Measurement:
        """One measurement of examples that all parts measured, such as with several noise seeds, in the order of ids.

        It has the means of `joined`. Standard errors need it: an example measured twice is still one example.
        """
        orders = [sorted(range(len(part.ids)), key=part.ids.__getitem__) for part in parts]
        weights = torch.stack([part.weights[order] for part, order in zip(parts, orders, strict=True)])
        losses, scores = (
            torch.stack([values[:, order] for values, order in zip(column, orders, strict=True)])
            for column in ([part.losses for part in parts], [part.scores for part in parts])
        )
        # An example that never counts has weight 0.
        shares = (weights / weights.sum(0).clamp_min(torch.finfo().tiny)).unsqueeze(1)
        return cls((losses * shares).sum(0), (scores * shares).sum(0), weights.mean(0), sorted(parts[0].ids))

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
