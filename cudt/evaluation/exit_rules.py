"""Rules of early exit: an example leaves the model at the first layer whose answer its rule
accepts, else at the last.

    confidence   the largest class probability is above a threshold
    entropy      the entropy −Σ p_c·log p_c of the class probabilities is below a threshold
    patience     as many layers in a row as the threshold says have predicted the same class

With two classes, confidence and entropy order examples alike, so that they differ only in their
thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    # The report reads the names of rules, and does without torch.
    from torch import Tensor

RuleName = Literal["confidence", "entropy", "patience"]
#: The rules, in the order of tables.
RULES: tuple[RuleName, ...] = get_args(RuleName)
#: Thresholds of confidence and entropy are these quantiles of their values on validation data.
_SHARES = [step / 20 for step in range(20)]


@dataclass(frozen=True)
class LayerAnswers:
    """What rules read of a layer's answers, (examples), or of all layers', (layers, examples)."""

    labels: Tensor
    """The predicted class."""
    confidence: Tensor
    entropy: Tensor
    streak: Tensor
    """How many layers in a row, up to this one, have predicted this class."""

    @classmethod
    def read(cls, probabilities: Tensor, before: LayerAnswers | None) -> LayerAnswers:
        """The answers of a layer with these class probabilities, given those of the layer
        before.
        """
        import torch

        confidence, labels = probabilities.max(-1)
        streak = torch.ones_like(labels)
        if before is not None:
            streak += before.streak * (labels == before.labels)
        return cls(labels, confidence, torch.special.entr(probabilities).sum(-1), streak)

    @classmethod
    def joined(cls, parts: Sequence[LayerAnswers], *, of_layers: bool = False) -> LayerAnswers:
        """The answers of several batches as one, or of several layers as those of all."""
        import torch

        join = torch.stack if of_layers else torch.cat
        along = 0 if of_layers else -1
        columns = ([part.labels, part.confidence, part.entropy, part.streak] for part in parts)
        return cls(*(join(list(column), along) for column in zip(*columns, strict=True)))


@dataclass(frozen=True)
class ExitRule:
    """A rule with its threshold."""

    name: RuleName
    threshold: float

    def accepts(self, answers: LayerAnswers) -> Tensor:
        """Which examples may leave with these answers."""
        match self.name:
            case "confidence":
                return answers.confidence > self.threshold
            case "entropy":
                return answers.entropy < self.threshold
            case "patience":
                return answers.streak >= self.threshold

    def exit_layers(self, answers: LayerAnswers) -> Tensor:
        """The layer, from 1, after which each example leaves, given the answers of all layers."""
        accepted = self.accepts(answers)
        accepted[-1] = True
        return accepted.int().argmax(0) + 1

    def __str__(self) -> str:
        sign = {"confidence": ">", "entropy": "<", "patience": "≥"}[self.name]
        return f"{self.name} {sign} {self.threshold:.4g}"


def operating_points(validation: LayerAnswers) -> dict[RuleName, list[ExitRule]]:
    """Each rule with thresholds from those that let nearly all examples leave early to one that
    lets none.

    Thresholds are quantiles over the answers of all layers but the last. The largest probability is
    never above 1 and the entropy never below 0. Patience has every threshold from 1 to the number
    of layers.
    """
    confidences = [*_quantiles(validation.confidence[:-1], _SHARES), 1.0]
    entropies = [*_quantiles(validation.entropy[:-1], [1 - share for share in _SHARES]), 0.0]
    return {
        "confidence": [ExitRule("confidence", threshold) for threshold in confidences],
        "entropy": [ExitRule("entropy", threshold) for threshold in entropies],
        "patience": [
            ExitRule("patience", float(count)) for count in range(1, len(validation.labels) + 1)
        ],
    }


def _quantiles(values: Tensor, shares: Sequence[float]) -> list[float]:
    """Quantiles, rounded to what a table can show, so that a threshold means the same when it is
    read from one.
    """
    # numpy's, because torch.quantile refuses more than 16 million values.
    return [round(float(value), 6) for value in np.quantile(values.numpy(), shares)]
