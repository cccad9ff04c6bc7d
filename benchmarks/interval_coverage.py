"""How often 95 % intervals hold the truth: the tables in docs/background/statistics.md.

    python -m benchmarks.interval_coverage [--draws 1000]

The score of an example is its own difficulty, what the side gains on it, what the seed shifts and noise of both; the
true difference is 0. Intervals over seeds alone or resampled are compared with the one of `cudt report`.

For video, the squared error of a window is that of its clip, which is skewed, times noise of its own; intervals of the
mean over windows or clips are compared with the one of `cudt eval-ood`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from cudt.evaluation import intervals

Array = np.ndarray[Any, Any]

EXAMPLES = 200
RESAMPLES = 2000
#: Standard deviations of the difference: what a seed shifts, what an example gains; the noise of both is 0.1.
VARIES = {"seeds": (0.02, 0.05), "both": (0.02, 0.28), "examples": (0.002, 0.28)}


def draw(rng: np.random.Generator, n: int, seed_spread: float, gain_spread: float) -> tuple[Array, Array]:
    """Scores of both sides, (seeds, examples)."""
    difficulty, gain = rng.normal(0, 0.3, EXAMPLES), rng.normal(0, gain_spread, EXAMPLES)

    def side(sign: float) -> Array:
        shift, noise = rng.normal(0, seed_spread, (n, 1)), rng.normal(0, 0.1, (n, EXAMPLES))
        return difficulty + sign * gain / 2 + (shift + noise) / np.sqrt(2)

    return side(1), side(-1)


def variance_of_mean(values: Array) -> tuple[Array, int]:
    return np.array([values.var(ddof=1) / len(values)]), len(values) - 1


def hits(rng: np.random.Generator, ours: Array, erm: Array) -> dict[str, bool]:
    """Which intervals hold 0."""
    each = ours - erm
    by_seed, n = each.mean(1), len(each)
    seeds = rng.multinomial(n, [1 / n] * n, size=RESAMPLES) / n
    examples = rng.multinomial(EXAMPLES, [1 / EXAMPLES] * EXAMPLES, size=RESAMPLES) / EXAMPLES
    resampled = {
        "bootstrap over seeds": seeds @ by_seed,
        "bootstrap over seeds and examples": ((examples @ each.T) * seeds).sum(1),
    }
    over_examples = (np.array([(examples @ each.mean(0)).var(ddof=1)]), EXAMPLES - 1)
    paired = [variance_of_mean(by_seed)]
    unpaired = [variance_of_mean(side.mean(1)) for side in (ours, erm)]
    reach = {
        "t over seeds": intervals.student(paired),
        "Satterthwaite": intervals.student([*paired, over_examples]),
        "here": np.hypot(intervals.student(paired), intervals.student([over_examples])),
        "here, unpaired": np.hypot(intervals.student(unpaired), intervals.student([over_examples])),
    }
    ends = {name: intervals.percentiles(means[:, None]) for name, means in resampled.items()}
    found = {name: bool(low[0] <= 0 <= high[0]) for name, (low, high) in ends.items()}
    return {**found, **{name: bool(abs(by_seed.mean()) <= far[0]) for name, far in reach.items()}}


def coverage(n: int, varies: str, draws: int) -> dict[str, float]:
    """The share of draws in which each interval holds the true difference."""
    rng = np.random.default_rng(0)
    found = [hits(rng, *draw(rng, n, *VARIES[varies])) for _ in range(draws)]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def clip_hits(rng: np.random.Generator, n_clips: int) -> dict[str, bool]:
    """Which intervals of a mean squared error hold the true one, 1, for clips of 10 to 40 windows."""
    clips: Array = np.repeat(np.arange(n_clips), rng.integers(10, 40, n_clips))
    # The mean of a lognormal variable is exp(μ + σ²/2).
    of_clip, of_window = (np.exp(rng.normal(-(s**2) / 2, s, n)) for s, n in ((0.4, n_clips), (0.3, len(clips))))
    values: Array = of_clip[clips] * of_window
    weights = np.ones((len(values), 1))
    ends = {
        "bootstrap over windows": intervals.percentiles(intervals.resampled_means(values[:, None], weights)),
        "bootstrap over clips": intervals.percentiles(intervals.resampled_means(values[:, None], weights, clips)),
    }
    found = {name: bool(low[0] <= 1 <= high[0]) for name, (low, high) in ends.items()}
    ours = intervals.bootstrap_of_clips(values, weights[:, 0], clips)
    return {**found, "here": ours is not None and ours[0] <= 1 <= ours[1]}


def clip_coverage(n_clips: int, draws: int) -> dict[str, float]:
    """The share of draws in which each interval holds the true mean squared error."""
    rng = np.random.default_rng(0)
    found = [clip_hits(rng, n_clips) for _ in range(draws)]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    draws = parser.parse_args().draws
    for n in (2, 3, 5):
        for varies in VARIES:
            shares = coverage(n, varies, draws)
            print(f"{n} seeds, {varies} vary: " + ", ".join(f"{k} {v:.3f}" for k, v in shares.items()), flush=True)
    for n_clips in (2, 4, 12, 21):
        shares = clip_coverage(n_clips, draws)
        print(f"{n_clips} clips: " + ", ".join(f"{k} {v:.3f}" for k, v in shares.items()), flush=True)


if __name__ == "__main__":
    main()
