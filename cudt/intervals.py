"""How sure a number is, given the examples it was measured on: 95 % intervals."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from torch import Tensor

_Z = NormalDist().inv_cdf(0.975)
_RESAMPLES = 1000


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval of a share of n examples: (p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 + z²/n).

    Unlike p ± z·√(p(1−p)/n), it stays within [0, 1] and says something at 0 and at 1.
    """
    centre = share + _Z**2 / (2 * n)
    reach = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale)


def bootstrap(values: Tensor, weights: Tensor) -> tuple[float, float]:
    """The percentile interval of Σ w·v / Σ w over 1,000 resamples of the examples; the same for the same values."""
    generator = np.random.default_rng(0)
    # Sorted, so that the order in which examples were met does not matter.
    order = np.lexsort((weights.numpy(), values.numpy()))
    v, w = (values * weights).numpy()[order], weights.numpy()[order]
    means = []
    for _ in range(_RESAMPLES):
        drawn = generator.integers(len(v), size=len(v))
        means.append(v[drawn].sum() / w[drawn].sum())
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
