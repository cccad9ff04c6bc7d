from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cudt.evaluation.intervals import (
    Array,
    bootstrap,
    bootstrap_of_clips,
    clips_of,
    resampled_means,
    student,
    student_quantile,
    variance_over_clips,
    wilson,
)

Z = 1.959963984540054


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_has_the_values_that_newcombe_prints(hits, n, low, high):
    # Newcombe, "Two-sided confidence intervals for the single proportion" (1998), Table I, method 3.
    assert wilson(hits / n, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("share", "n"), [(0.5, 4), (0.9, 40), (1 / 29, 29), (0.123, 25_000), (1.0, 1)])
def test_wilsons_ends_are_the_shares_that_are_just_within_reach_of_the_measured_one(share, n):
    # Its definition: |p̂ − p| = z·√(p(1−p)/n) at both ends.
    for end, sign in zip(wilson(share, n), (1, -1), strict=True):
        assert share - end == pytest.approx(sign * Z * math.sqrt(end * (1 - end) / n), abs=1e-9)


@pytest.mark.parametrize("n", [1, 40, 25_000])
def test_wilson_says_something_where_all_or_none_are_right(n):
    # p = z²p(1−p)/(np) solved for p: the other end is z²/(n + z²) away.
    away = Z**2 / (n + Z**2)
    assert wilson(0.0, n) == pytest.approx((0, away), abs=1e-12)
    assert wilson(1.0, n) == pytest.approx((1 - away, 1), abs=1e-12)
    assert wilson(0.0, n)[0] >= 0
    assert wilson(1.0, n)[1] <= 1


def sample(n: int, seed: int) -> Tensor:
    return torch.empty(n, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(seed))


def test_the_bootstrap_of_a_large_sample_is_the_normal_interval():
    values = sample(5000, 0)
    error = values.std().item() / math.sqrt(5000)
    low, high = bootstrap(values, torch.ones(5000))
    assert low == pytest.approx(values.mean().item() - Z * error, abs=0.2 * error)
    assert high == pytest.approx(values.mean().item() + Z * error, abs=0.2 * error)


def test_the_bootstrap_of_a_weighted_mean_resamples_the_weights_too():
    values, weights = sample(5000, 0), torch.randint(1, 9, (5000,), generator=torch.Generator().manual_seed(1)).double()
    mean = (values @ weights / weights.sum()).item()
    # The standard error of a ratio: √Σ w²(v − m)² / Σ w.
    error = ((weights * (values - mean)).square().sum().sqrt() / weights.sum()).item()
    low, high = bootstrap(values, weights)
    assert low == pytest.approx(mean - Z * error, abs=0.2 * error)
    assert high == pytest.approx(mean + Z * error, abs=0.2 * error)


def test_about_95_of_100_intervals_hold_the_true_mean():
    # Of a normal law, whose mean is 0; the binomial(100, 0.95) lies within these bounds in 99 cases of 100.
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(100, 60, generator=generator, dtype=torch.float64)
    ends = [bootstrap(one, torch.ones(60)) for one in samples]
    assert 88 <= sum(low <= 0 <= high for low, high in ends) <= 99


def test_an_example_without_weight_does_not_count():
    values, weights = sample(50, 0), torch.ones(50)
    values[0], weights[0] = 1e9, 0
    assert bootstrap(values, weights)[1] < values[1:].max()


def test_values_that_are_all_the_same_leave_no_doubt():
    assert bootstrap(torch.full((9,), 0.25), torch.arange(1.0, 10.0)) == pytest.approx((0.25, 0.25))
    assert bootstrap(torch.tensor([0.25]), torch.ones(1)) == (0.25, 0.25)


def test_the_same_values_have_the_same_interval():
    values = sample(50, 0)
    first = bootstrap(values, torch.ones(50))
    torch.rand(3)
    assert bootstrap(values, torch.ones(50)) == first
    # The unit of weights is nobody's business.
    assert bootstrap(values, torch.full((50,), 8.0)) == pytest.approx(first)


def test_the_order_of_examples_does_not_matter_to_the_bootstrap():
    generator = torch.Generator().manual_seed(0)
    values, weights = torch.rand(2, 200, generator=generator, dtype=torch.double)
    order = torch.randperm(200, generator=generator)
    assert bootstrap(values, weights) == bootstrap(values[order], weights[order])


# ---------------------------------------------------------------- paired differences


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706205), (2, 4.302653), (3, 3.182446), (5, 2.570582), (10, 2.228139), (30, 2.042272), (10**6, 1.959966)],
)
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


def test_variances_that_add_up_have_satterthwaites_degrees_of_freedom():
    # Equal variances of 3 and 3 degrees of freedom are one of 6; next to a large one a small one does not count.
    reach = student([(np.array([2.0, 1e-12, 0.0]), 3), (np.array([2.0, 1.0, 0.0]), 3)])
    assert reach == pytest.approx([2 * 2.446912, 3.182446, 0], abs=1e-4)


def test_means_of_columns_are_resampled_together_and_weighted():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(30, 2)), rng.integers(1, 5, (30, 2)).astype(float)
    found = resampled_means(values, weights)
    draws = np.random.default_rng(0)
    for row in found:
        rows = draws.integers(30, size=30)
        for column in range(2):
            v, w = values[rows, column], weights[rows, column]
            assert row[column] == pytest.approx((v * w).sum() / w.sum())
    assert found.shape == (2000, 2)


def test_more_examples_than_are_drawn_at_once_give_the_same_means(monkeypatch):
    values = np.random.default_rng(0).normal(size=(50, 3))
    whole = resampled_means(values, np.ones_like(values))
    monkeypatch.setattr("cudt.evaluation.intervals._DRAWS", 350)
    assert resampled_means(values, np.ones_like(values)) == pytest.approx(whole)


# ---------------------------------------------------------------- windows of clips


def windows(rng: np.random.Generator, n_clips: int, true_mean: float = 1.0) -> tuple[Array, Array]:
    """Squared errors of 5 to 20 windows of each clip, whose clips differ more than their windows, and their clips."""
    clips: Array = np.repeat(np.arange(n_clips), rng.integers(5, 20, n_clips))
    errors = true_mean + rng.normal(0, 0.2, n_clips)[clips] + rng.normal(0, 0.1, len(clips))
    return errors, clips


def over_clips(values: Array, clips: Array) -> tuple[float, float]:
    found = bootstrap_of_clips(values, np.ones(len(values)), clips)
    assert found is not None
    return found


def test_the_clip_of_a_window_is_all_but_the_end_of_its_id():
    ids = ["test/b/0", "test/a/0", "test/b/8", "test/a/b/0", "test/b/16"]
    assert clips_of(ids).tolist() == [2, 0, 2, 1, 2]


def test_clips_are_drawn_with_all_their_windows():
    rng = np.random.default_rng(0)
    clips = np.array([0, 2, 1, 0, 2, 2, 1, 0])
    values, weights = rng.normal(size=(8, 2)), rng.integers(1, 5, (8, 2)).astype(float)
    found = resampled_means(values, weights, clips)
    draws = np.random.default_rng(0)
    for row in found:
        rows = [index for clip in draws.integers(3, size=3) for index in np.flatnonzero(clips == clip)]
        wanted = [np.average(values[rows, column], weights=weights[rows, column]) for column in range(2)]
        assert row == pytest.approx(wanted, abs=1e-12)


def test_clips_of_one_window_are_drawn_like_examples():
    values, weights = np.random.default_rng(0).random((2, 30, 2))
    assert np.allclose(resampled_means(values, weights, np.arange(30)), resampled_means(values, weights), rtol=1e-12)


@pytest.mark.parametrize("n_clips", [2, 12])
def test_the_variance_over_clips_of_one_size_is_that_of_their_mean(n_clips):
    values = np.random.default_rng(0).normal(size=n_clips)
    clips: Array = np.repeat(np.arange(n_clips), 7)
    resampled = resampled_means(values[clips][:, None], np.ones((len(clips), 1)), clips)
    (variance,), freedom = variance_over_clips(resampled, n_clips)
    assert variance == pytest.approx(values.var(ddof=1) / n_clips, rel=0.1)
    assert freedom == n_clips - 1


def test_the_interval_over_many_clips_is_the_normal_one_and_wider_than_that_over_windows():
    rng = np.random.default_rng(0)
    values, clips = windows(rng, 1000)
    low, high = over_clips(values, clips)
    mean = values.mean()
    # The standard error of a ratio: √Σ (Σ v − m·n)² / N, with sums over the windows of each clip.
    error = math.sqrt((np.bincount(clips, values - mean) ** 2).sum()) / len(values)
    assert [low, high] == pytest.approx([mean - Z * error, mean + Z * error], abs=0.1 * error)
    of_windows = bootstrap(torch.from_numpy(values), torch.ones(len(values)))
    assert high - low > 2 * (of_windows[1] - of_windows[0])


@pytest.mark.parametrize("n_clips", [2, 4, 12])
def test_about_95_of_100_intervals_over_few_clips_hold_the_true_mean(n_clips):
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(100):
        values, clips = windows(rng, n_clips)
        low, high = over_clips(values, clips)
        hits.append(low <= 1 <= high)
    # The binomial(100, 0.95) lies within these bounds in 99 cases of 100.
    assert 88 <= sum(hits) <= 99


def test_one_clip_and_means_of_zero_have_no_interval():
    assert bootstrap_of_clips(np.array([1.0, 2.0, 3.0]), np.ones(3), np.zeros(3, dtype=int)) is None
    assert bootstrap_of_clips(np.zeros(4), np.ones(4), np.array([0, 0, 1, 1])) is None
