"""What the theory says about layer losses under noise, with its constants measured.

Let f_l be the loss of layer l on the training distribution D, and f′_l on a shifted one, here noise
of another level or kind. If f_l ≤ (1−α)·f_{l−1} for every layer, then

    f′_l − (1−α_l)·f′_{l−1} ≤ ζ + C·τ            for every layer: descent carries over
    min_k f′_k − f* ≤ (1/α)·(ζ + C·τ)            as L grows: the best layer is good

ζ bounds how far violations on the training data are from those in expectation, and C·τ the change
of a violation by the shift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def achieved_rates(losses: Sequence[float], reference: float) -> list[float]:
    """1 − f_l / f_{l−1} for each layer, to compare with α_l; negative where it raises the loss."""
    return [
        1 - after / before if before else (-math.inf if after else 0.0)
        for before, after in zip([reference, *losses], losses, strict=False)
    ]


def distribution_shift(losses: Sequence[float], trained: Sequence[float]) -> float:
    """The smallest C·τ for layer losses f′ under a shift and f without: max_l [f′_l − f_l]₊ + max_l
    [f_l − f′_l]₊.

    Both directions count: the constraint of a layer has its own loss and the one before.
    """
    changes = [after - before for before, after in zip(trained, losses, strict=True)]
    return max(0.0, *changes) + max(0.0, *(-change for change in changes))


def estimation_gap(train: Sequence[float], validation: Sequence[float]) -> float:
    """The measured ζ: the same sum for the step from training to validation data."""
    return distribution_shift(validation, train)
