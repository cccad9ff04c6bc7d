from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cudt.evaluation.intervals import bootstrap, resampled_means, student, student_quantile, wilson

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
