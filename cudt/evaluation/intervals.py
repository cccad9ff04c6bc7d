"""95 % confidence intervals over the examples that a number was measured on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

_Z = NormalDist().inv_cdf(0.975)
_RESAMPLES = 1000
_PAIRED_RESAMPLES = 2000
#: Number of random draws held in memory at the same time.
_DRAWS = 2**21

Array = np.ndarray[Any, Any]


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval of a share of n examples: (p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 +
    z²/n).

    Unlike p ± z·√(p(1−p)/n), it stays within [0, 1] and has a width above 0 at p = 0 and p = 1.
    """
    centre = share + _Z**2 / (2 * n)
    reach = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale)


def bootstrap(values: Array, weights: Array) -> tuple[float, float]:
    """The percentile interval of Σ w·v / Σ w over 1,000 resamples of the examples;
    deterministic.
    """
    generator = np.random.default_rng(0)
    # Sorted, so that the order of the examples does not matter.
    order = np.lexsort((weights, values))
    v, w = (values * weights)[order], weights[order]
    means = []
    for _ in range(_RESAMPLES):
        drawn = generator.integers(len(v), size=len(v))
        means.append(v[drawn].sum() / w[drawn].sum())
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def bootstrap_of_clips(values: Array, weights: Array, clips: Array) -> tuple[float, float] | None:
    """m·exp(±r) for m = Σ w·v / Σ w: an interval over resamples of whole clips; None for one clip,
    or if m can be 0.

    r is half the width of Student's interval of log m (`student`, `variance_over_clips`). The
    percentiles of few clips would be far too narrow, and an interval of m itself could reach below
    0, where an error cannot be.
    """
    n_clips = len(np.unique(clips))
    means = resampled_means(values[:, None], weights[:, None], clips)
    if n_clips < 2 or (means <= 0).any():
        return None
    (reach,) = student([variance_over_clips(np.log(means), n_clips)])
    mean = values @ weights / weights.sum()
    return float(mean * np.exp(-reach)), float(mean * np.exp(reach))


def clips_of(ids: Sequence[str]) -> Array:
    """The number of each window's clip, in the order of their names; a window's id is its clip's, a
    slash and more.
    """
    return np.unique([name.rpartition("/")[0] for name in ids], return_inverse=True)[1]


def variance_over_clips(resampled: Array, n_clips: int) -> tuple[Array, int]:
    """The variance of each column over resamples of k clips, and its k − 1 degrees of freedom.

    Times k/(k−1): resamples scatter around the mean of the k clips, whose own mean square deviation
    is too small.
    """
    return resampled.var(0, ddof=1) * n_clips / (n_clips - 1), n_clips - 1


def resampled_means(values: Array, weights: Array, clips: Array | None = None) -> Array:
    """Σ c·w·v / Σ c·w of every column over 2,000 resamples of the rows, where c counts how often
    each was drawn.

    With the numbers of their clips, the rows of one clip are drawn together. The draws depend only
    on the number of rows or clips: tables of the same examples in the same order have the same
    resamples, so that differences of their means are paired.
    """
    columns = values.shape[1]
    # Usually an example has the same weight at every level; then one sum of weights is enough.
    counted = weights[:, :1] if (weights == weights[:, :1]).all() else weights
    sums = np.hstack([values * weights, counted])
    if clips is not None:
        sums = np.eye(clips.max() + 1)[clips].T @ sums
    means = []
    for counts in _counts(len(sums)):
        resampled = counts.astype(float) @ sums
        means.append(resampled[:, :columns] / resampled[:, columns:])
    return np.concatenate(means)


def _counts(n: int) -> Iterator[Array]:
    """How often each of n rows was drawn, in all resamples, a number of resamples at a time."""
    generator = np.random.default_rng(0)
    size = max(1, _DRAWS // n)
    for start in range(0, _PAIRED_RESAMPLES, size):
        rows = min(size, _PAIRED_RESAMPLES - start)
        drawn = generator.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)


def percentiles(resampled: Array) -> tuple[Array, Array]:
    """The ends of the percentile interval of each column."""
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    return low, high


def student(parts: Sequence[tuple[Array, int]]) -> Array:
    """t_ν·√(Σ v_i): half the width of an interval, for a variance that is a sum of independent
    estimates.

    Each part is a variance v_i with its degrees of freedom ν_i; Satterthwaite's ν = (Σ v_i)² / Σ
    (v_i² / ν_i).
    """
    total = sum(variance for variance, _ in parts)
    squares = sum(variance**2 / freedom for variance, freedom in parts)
    with np.errstate(invalid="ignore"):
        freedom = np.maximum(total**2 / squares, 1.0)
    quantiles = [
        student_quantile(round(float(one), 6)) if math.isfinite(one) else 0.0
        for one in np.ravel(freedom)
    ]
    return np.reshape(quantiles, np.shape(freedom)) * np.sqrt(total)


@lru_cache(maxsize=4096)
def student_quantile(freedom: float) -> float:
    """The 97.5 % quantile of Student's t with ν ≥ 1 degrees of freedom (without scipy, which is not
    a dependency).

    With t = √ν·tan θ, P(0 < T < t) = c·∫_0^θ cos^{ν−1}, c = Γ((ν+1)/2) / (√π·Γ(ν/2)), which is
    solved for 0.475.
    """
    # The largest quantile, at ν = 1, is 12.7.
    angles = np.linspace(0, math.atan(13 / math.sqrt(freedom)), 2001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)]) * angles[1]
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return math.sqrt(freedom) * math.tan(float(np.interp(0.475, scale * area, angles)))
