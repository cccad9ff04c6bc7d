"""Intervals against published values, literal twins, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

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


def test_wilson_has_the_values_that_newcombe_prints():
    # Newcombe, "Two-sided confidence intervals for the single proportion" (1998), Table I, method
    # 3.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)
    assert wilson(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_about_95_of_100_intervals_hold_the_true_mean():
    # Of a normal law, whose mean is 0; the binomial(100, 0.95) lies within these bounds in 99 cases
    # of 100.
    samples = np.random.default_rng(0).normal(size=(100, 60))
    ends = [bootstrap(one, np.ones(60)) for one in samples]
    assert 88 <= sum(low <= 0 <= high for low, high in ends) <= 99


# ---------------------------------------------------------------- paired differences


def test_students_quantiles_are_those_of_the_tables():
    printed = {1: 12.706205, 2: 4.302653, 3: 3.182446, 10: 2.228139, 10**6: 1.959966}
    for freedom, quantile in printed.items():
        assert student_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


def test_variances_that_add_up_have_satterthwaites_degrees_of_freedom():
    # Equal variances of 3 and 3 degrees of freedom are one of 6; next to a large one a small one
    # does not count.
    reach = student([(np.array([2.0, 1e-12, 0.0]), 3), (np.array([2.0, 1.0, 0.0]), 3)])
    assert reach == pytest.approx([2 * 2.446912, 3.182446, 0], abs=1e-4)


# ---------------------------------------------------------------- windows of clips


def test_the_clip_of_a_window_is_all_but_the_end_of_its_id():
    ids = ["test/b/0", "test/a/0", "test/b/8", "test/a/b/0", "test/b/16"]
    assert clips_of(ids).tolist() == [2, 0, 2, 1, 2]


@pytest.mark.parametrize("clips", [None, np.array([0, 2, 1, 0, 2, 2, 1, 0])])
def test_clips_or_rows_are_drawn_for_all_columns_together(clips):
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(8, 2)), rng.integers(1, 5, (8, 2)).astype(float)
    found = resampled_means(values, weights, clips)
    assert found.shape == (2000, 2)
    draws, groups = np.random.default_rng(0), np.arange(8) if clips is None else clips
    for row in found:
        drawn = draws.integers(groups.max() + 1, size=groups.max() + 1)
        rows = np.concatenate([np.flatnonzero(groups == one) for one in drawn])
        wanted = (values[rows] * weights[rows]).sum(0) / weights[rows].sum(0)
        assert row == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("n_clips", [2, 12])
def test_the_variance_over_clips_of_one_size_is_that_of_their_mean(n_clips):
    values = np.random.default_rng(0).normal(size=n_clips)
    clips: Array = np.repeat(np.arange(n_clips), 7)
    resampled = resampled_means(values[clips][:, None], np.ones((len(clips), 1)), clips)
    (variance,), freedom = variance_over_clips(resampled, n_clips)
    assert variance == pytest.approx(values.var(ddof=1) / n_clips, rel=0.1)
    assert freedom == n_clips - 1


@pytest.mark.parametrize("n_clips", [2, 4, 12])
def test_about_95_of_100_intervals_over_few_clips_hold_the_true_mean(n_clips):
    rng, hits = np.random.default_rng(1), []
    for _ in range(100):
        # Clips of 5 to 20 windows differ more than the windows of one.
        clips: Array = np.repeat(np.arange(n_clips), rng.integers(5, 20, n_clips))
        values = 1 + rng.normal(0, 0.2, n_clips)[clips] + rng.normal(0, 0.1, len(clips))
        ends = bootstrap_of_clips(values, np.ones(len(values)), clips)
        hits.append(ends is not None and ends[0] <= 1 <= ends[1])
    # The binomial(100, 0.95) lies within these bounds in 99 cases of 100.
    assert 88 <= sum(hits) <= 99
