"""The losses of a classifier, with the least loss of an answer that ignores the input (`reference:
auto`).

With K classes, probabilities p and the true class c:

    cross_entropy           −log p_c, without bound
    brier                   Σ_k (p_k − [k = c])², in [0, 2]
    clipped_cross_entropy   −log max(p_c, p_min), in [0, log 1/p_min], with p_min = 1/(100·K)

p_min is a hundredth of the probability of guessing. An example whose true class gets less has the
largest loss and no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudt.config.tasks import LossName

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ClassLoss:
    """A loss of class probabilities."""

    of_answers: Callable[[Tensor, Tensor], Tensor]
    """From logits (examples, classes) and labels to the loss of each example."""
    of_guessing: Callable[[Sequence[float]], float]
    """From the shares of all K classes to the least mean loss of one answer for all examples."""


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    import torch.nn.functional as F  # noqa: N812  (the name everybody uses)

    return F.cross_entropy(logits, labels, reduction="none")


def _entropy(shares: Sequence[float]) -> float:
    """−Σ s_c·log s_c: the best answer is the shares themselves."""
    return -sum(share * math.log(share) for share in shares if share)


def _brier(logits: Tensor, labels: Tensor) -> Tensor:
    import torch.nn.functional as F  # noqa: N812  (the name everybody uses)

    return (logits.softmax(-1) - F.one_hot(labels, logits.shape[-1])).square().sum(-1)


def _gini(shares: Sequence[float]) -> float:
    """1 − Σ s_c²: the best answer is the shares themselves."""
    return 1 - sum(share**2 for share in shares)


def _bound(n_classes: int) -> float:
    """log 1/p_min."""
    return math.log(100 * n_classes)


def _clipped(logits: Tensor, labels: Tensor) -> Tensor:
    return _cross_entropy(logits, labels).clamp_max(_bound(logits.shape[-1]))


def _clipped_entropy(shares: Sequence[float]) -> float:
    """The best answer gives the rarest classes nothing, since their loss is bounded, and the others
    their shares.
    """
    ordered = sorted(shares)
    candidates = []
    for n_dropped in range(len(ordered)):
        dropped, kept = sum(ordered[:n_dropped]), ordered[n_dropped:]
        total = sum(kept)
        candidates.append(
            dropped * _bound(len(shares)) + total * _entropy([share / total for share in kept])
        )
    return min(candidates)


LOSSES: dict[LossName, ClassLoss] = {
    "cross_entropy": ClassLoss(_cross_entropy, _entropy),
    "brier": ClassLoss(_brier, _gini),
    "clipped_cross_entropy": ClassLoss(_clipped, _clipped_entropy),
}
