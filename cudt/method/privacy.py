"""Differential privacy of the Gaussian mechanism: from noise to ε and back, exactly (Balle and Wang, 2018).

A mechanism adds N(0, σ²) to every entry of a vector. If neighbouring inputs differ by at most Δ in the Euclidean norm,
then with μ = Δ/σ it is (ε, δ)-differentially private exactly for

    δ ≥ δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ)
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: The noise of the mechanism.
NOISE = "gaussian"
#: The unit that figures and comparisons are about: the one that needs least noise.
UNIT = "token"
#: An ε up to this is called reasonable (Ponomareva et al., How to DP-fy ML, 2023); above it, odds may grow e¹⁰-fold.
REASONABLE = 10.0
#: Halvings of an interval of numbers; more than a double has bits.
_HALVINGS = 200
#: The largest μ that is looked for; ε is then 10¹⁶ and more.
_LARGEST = 1e8


def delta_at(epsilon: float, mu: float) -> float:
    """The smallest δ for which the mechanism with μ = Δ/σ is (ε, δ)-private.

    With t = ε/μ − μ/2, φ(t) = e^ε·φ(t + μ). The second term is therefore φ(t)·M(t + μ), where M = Φ(−x)/φ(x) is
    Mills' ratio, and e^ε, which overflows for ε > 709, is never computed.
    """
    t = epsilon / mu - mu / 2
    density = math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    return max(0.0, math.erfc(t / math.sqrt(2)) / 2 - density * _mills_ratio(t + mu))


def epsilon_at(delta: float, mu: float) -> float:
    """The smallest ε for which the mechanism with μ = Δ/σ is (ε, δ)-private; infinite without noise."""
    _check(delta)
    if math.isinf(mu):
        return math.inf
    if mu == 0 or delta_at(0.0, mu) <= delta:
        return 0.0
    # At this ε, Φ(−t) is 10⁻³⁰⁰ or less, which is below every δ.
    return _smallest(lambda epsilon: delta_at(epsilon, mu) <= delta, 0.0, mu * (38 + mu / 2))


def noise_multiplier(epsilon: float, delta: float) -> float:
    """The smallest σ/Δ that makes the mechanism (ε, δ)-private: the inverse of `epsilon_at`."""
    _check(delta)
    if not epsilon >= 0:
        raise ValueError(f"ε must be at least 0, got {epsilon:g}")
    return _smallest(lambda noise: delta_at(epsilon, 1 / noise) <= delta, 1 / _LARGEST, _LARGEST)


def _check(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"δ must be between 0 and 1, got {delta:g}")


def _mills_ratio(x: float) -> float:
    """M(x) = Φ(−x)/φ(x), which neither over- nor underflows for x ≥ 0."""
    import torch

    scaled = torch.special.erfcx(torch.tensor(x / math.sqrt(2), dtype=torch.float64))
    return math.sqrt(math.pi / 2) * float(scaled)


def _smallest(is_enough: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest number in an interval that is enough, if all larger ones are enough as well."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
