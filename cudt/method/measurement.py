"""The result of measuring a model on a data set: losses and scores of every example at every
layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


class MeasuredExamples(ABC):
    """Losses and scores of examples at every layer, read in blocks of examples.

    Results over all examples are sums over the blocks. All examples of a large data set do not fit
    into memory at every layer and noise level; see `Measurement` for those that do.
    """

    @abstractmethod
    def blocks(self) -> Iterator[Measurement]:
        """All examples once, always in the same order."""

    @property
    def layer_losses(self) -> Tensor:
        """f_1 … f_L: the weighted mean loss of each layer."""
        return self._sums[0] / self.total_weight

    @property
    def layer_scores(self) -> Tensor:
        """The weighted mean score of each layer."""
        return self._sums[1] / self.total_weight

    @property
    def input_score(self) -> float | None:
        """The weighted mean score of the noisy inputs; None for tasks where the input is no
        answer.
        """
        total = self._sums[2]
        return None if total is None else (total / self.total_weight).item()

    @property
    def total_weight(self) -> Tensor:
        """The sum of the examples' weights."""
        return self._sums[3]

    def last_layer(self) -> Measurement:
        """All examples at the last layer only."""
        parts = [
            # Copies: a view of the last layer would keep the whole block in memory.
            Measurement(
                one.losses[-1:].clone(), one.scores[-1:].clone(), one.weights.clone(), one.ids
            )
            for one in self.blocks()
        ]
        return Measurement.joined(parts)

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Weighted sums of losses, scores and scores of inputs, and the sum of the weights, in one
        pass.
        """
        losses, scores, inputs, weights = torch.zeros(()), torch.zeros(()), None, torch.zeros(())
        for block in self.blocks():
            losses = losses + block.losses @ block.weights
            scores = scores + block.scores @ block.weights
            weights = weights + block.weights.sum()
            if block.input_scores is not None:
                inputs = block.input_scores @ block.weights + (0.0 if inputs is None else inputs)
        return losses, scores, inputs, weights


@dataclass(frozen=True)
class Measurement(MeasuredExamples):
    """Losses and scores of every example at every layer, (layers, examples), with the examples'
    weights and ids.
    """

    losses: Tensor
    scores: Tensor
    weights: Tensor
    ids: list[str]
    input_scores: Tensor | None = None
    """The score of each example's noisy input as an answer, (examples,); None for tasks where it is
    none."""

    def blocks(self) -> Iterator[Measurement]:
        """All examples at once."""
        yield self

    @classmethod
    def joined(cls, parts: Sequence[Measurement]) -> Measurement:
        """One measurement of the examples of all parts."""
        columns = ([part.losses, part.scores, part.weights] for part in parts)
        losses, scores, weights = (torch.cat(column, -1) for column in zip(*columns, strict=True))
        inputs = [part.input_scores for part in parts if part.input_scores is not None]
        ids = [example_id for part in parts for example_id in part.ids]
        return cls(losses, scores, weights, ids, torch.cat(inputs) if inputs else None)

    def grouped(self, names: Sequence[str]) -> Measurement:
        """One row for all examples of the same name, with their weighted mean and their total
        weight.

        The means over all examples stay the same. Standard errors need it: an example measured with
        two noise seeds is still one example.
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
