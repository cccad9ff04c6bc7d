"""What the theory says about layer losses under noise, with its constants measured.

The theory's problem has f_l ≤ (1−α)·f_{l−1} on the training distribution D. It has two consequences
for a shifted distribution D′, here noise of another level or kind, where f′_l is the loss of layer
l:

    descent carries over      f′_l − (1−α_l)·f′_{l−1} ≤ ζ + C·τ      for every layer
    the best layer is good    min_k f′_k − f* ≤ (1/α)·(ζ + C·τ)      as the number of layers grows

ζ bounds how far the violations on the training data are from those in expectation. C·τ = C·d(D, D′)
+ C·d(D′, D), where C·d(D, D′) bounds f_l − f′_l and C·d(D′, D) bounds f′_l − f_l for all layers. f*
≥ 0 is the lowest loss that any function has on D′. It is unknown, so min_k f′_k is the measured
quantity: it is at least min_k f′_k − f*. A term for constraints that fail with probability δ is
left out, because it cannot be measured.

Both follow from f′_l ≤ (1−α_l)·f′_{l−1} + ζ + C·τ. The ladder, f_l ≤ (1−α_1)·…·(1−α_l)·f_0, has no
loss of another layer in it, so errors do not add up over layers: f′_l ≤ (1−α_1)·…·(1−α_l)·f_0 + ζ +
C·τ, and the best layer's bound is ζ + C·τ. Functions of floats only, one loss for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudt.method.constraints import Form


def best_layer(losses: Sequence[float]) -> int:
    """The layer with the lowest loss, counted from 1; the first of several."""
    return min(range(len(losses)), key=lambda index: losses[index]) + 1


def gap_to_best(losses: Sequence[float]) -> float:
    """f_L − min_k f_k: what reading the last layer costs where an earlier one is better; 0 if the
    last is the best.
    """
    return losses[-1] - min(losses)


def achieved_rates(losses: Sequence[float], reference: float) -> list[float]:
    """1 − f_l / f_{l−1} for each layer, to compare with α_l; negative where a layer raises the
    loss.
    """
    return [
        _rate(after, before) for before, after in zip([reference, *losses], losses, strict=False)
    ]


def mean_rate(losses: Sequence[float], reference: float) -> float:
    """1 − (f_L / f_0)^(1/L): the constant rate that leads from f_0 to f_L in L layers."""
    return 1 - (losses[-1] / reference) ** (1 / len(losses))


def distribution_shift(losses: Sequence[float], trained: Sequence[float]) -> float:
    """The smallest C·τ that fits the layer losses `losses` under a shift and `trained` without it.

    C·τ = max_l [f′_l − f_l]₊ + max_l [f_l − f′_l]₊. If all losses move in one direction, this is
    max_l |f′_l − f_l|. If some rise and others fall, both directions count, as the constraint of a
    layer contains its own loss and the one before.
    """
    changes = [after - before for before, after in zip(trained, losses, strict=True)]
    return max(0.0, *changes) + max(0.0, *(-change for change in changes))


def estimation_gap(train: Sequence[float], validation: Sequence[float]) -> float:
    """The measured ζ: the same sum for the step from training to validation data.

    The paper's ζ bounds |f_l on training data − f_l in expectation| for each layer. A constraint
    contains two losses, which may err in opposite directions, so both directions count.
    """
    return distribution_shift(validation, train)


def limit_bound(rates: Sequence[float], zeta: float, shift: float, form: Form = "linear") -> float:
    """(1/α)·(ζ + C·τ), or ζ + C·τ on the ladder: the best layer's loss is at most this far above
    f*, for many layers.

    With a rate for each layer, α is the smallest. At α = 0 nothing is promised, and the bound is
    infinite.
    """
    smallest = min(rates)
    if smallest <= 0:
        return math.inf
    return zeta + shift if form == "ladder" else (zeta + shift) / smallest


def depth_bound(
    rates: Sequence[float], reference: float, zeta: float, shift: float, form: Form = "linear"
) -> float:
    """The same for the L layers that the model has: b_L of b_l = (1−α_l)·b_{l−1} + ζ + C·τ from b_0
    = f_0.

    It includes (1−α)^L·f_0, the loss that α leaves after L layers, and tends to `limit_bound` as L
    grows. On the ladder ζ + C·τ is added once.
    """
    error = zeta + shift
    if form == "ladder":
        return reference * math.prod(1 - rate for rate in rates) + error
    bound = reference
    for rate in rates:
        bound = (1 - rate) * bound + error
    return bound


def _rate(after: float, before: float) -> float:
    if before:
        return 1 - after / before
    return 0.0 if after == 0 else -math.inf
