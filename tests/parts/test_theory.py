"""Measured constants and bounds against curves made by hand, and the inequalities they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cudt.method import theory


def random_curves(n: int = 200):
    generator = np.random.default_rng(0)
    for _ in range(n):
        layers = int(generator.integers(1, 9))
        curves = generator.uniform(0.01, 2, (2, layers)).tolist()
        yield generator, layers, *curves


def test_rates_of_a_curve_made_by_hand():
    rates = theory.achieved_rates([0.6, 0.3, 0.15, 0.18], 0.75)
    assert rates == pytest.approx([0.2, 0.5, 0.5, -0.2])
    assert theory.achieved_rates([0.0, 0.0, 0.1], 1.0) == [1.0, 0.0, -math.inf]


def test_the_mean_rate_is_the_constant_one_with_the_same_last_loss():
    for _, layers, curve, _ in random_curves():
        rate = theory.mean_rate(curve, 0.7)
        assert 0.7 * (1 - rate) ** layers == pytest.approx(curve[-1])


def test_a_shift_in_one_direction_is_its_largest_change():
    above, below = [0.7, 0.5, 0.4], [0.6, 0.3, 0.35]
    assert theory.distribution_shift(above, below) == pytest.approx(0.2)
    assert theory.distribution_shift(below, above) == pytest.approx(0.2)
    assert theory.distribution_shift(above, above) == 0


def test_zeta_bounds_the_change_of_a_violation_where_losses_move_in_opposite_directions():
    assert theory.estimation_gap([0.5, 0.3], [0.4, 0.2]) == pytest.approx(0.1)
    # One loss rises and the other falls: the violation of layer 2 changes by 0.1 + 0.9 · 0.1.
    train, validation, alpha = [1.0, 0.9], [0.9, 1.0], 0.1
    violation = validation[1] - (1 - alpha) * validation[0]
    assert violation == pytest.approx(0.19)
    assert violation <= theory.estimation_gap(train, validation) == pytest.approx(0.2)


def test_no_violation_grows_by_more_than_the_shift():
    """The corollary: g_l(γ) ≤ g_l(γ_train) + C·τ; the largest |change| alone would not be
    enough."""
    broken_by_largest_change = 0
    for generator, layers, curve, trained in random_curves():
        rates = generator.uniform(0, 0.9, layers)
        before, after = (np.array([0.7, *values]) for values in (trained, curve))
        grown = (after - before)[1:] - (1 - rates) * (after - before)[:-1]
        growth = float(grown.max())
        assert growth <= theory.distribution_shift(curve, trained) + 1e-12
        broken_by_largest_change += growth > max(abs(after - before)) + 1e-12
    assert broken_by_largest_change


def test_the_bounds_of_a_hand_made_case():
    assert theory.limit_bound([0.5, 0.1], 0.02, 0.03) == pytest.approx(0.5)
    # b_1 = 0.9·0.7 + 0.05 = 0.68, b_2 = 0.8·0.68 + 0.05
    assert theory.depth_bound([0.1, 0.2], 0.7, 0.02, 0.03) == pytest.approx(0.594)
    assert theory.limit_bound([0.1, 0.2], 0.02, 0.03, "ladder") == pytest.approx(0.05)
    assert theory.limit_bound([0.1, 0.0], 0.02, 0.03, "ladder") == math.inf
    on_the_ladder = theory.depth_bound([0.1, 0.2], 0.7, 0.02, 0.03, "ladder")
    assert on_the_ladder == pytest.approx(0.9 * 0.8 * 0.7 + 0.05)


def test_the_bound_at_a_depth_is_a_geometric_series_that_tends_to_the_limit():
    rate, error = 0.3, 0.05
    closed = 0.7**6 * 2.0 + error * (1 - 0.7**6) / rate
    assert theory.depth_bound([rate] * 6, 2.0, 0.01, 0.04) == pytest.approx(closed)
    limit = theory.limit_bound([rate], 0.01, 0.04)
    assert theory.depth_bound([rate] * 500, 2.0, 0.01, 0.04) == pytest.approx(limit)


@pytest.mark.parametrize("form", ["linear", "ladder"])
def test_losses_that_meet_the_constraints_stay_below_the_bound_after_any_shift(form):
    for generator, layers, _, _ in random_curves():
        rates, below = generator.uniform(0, 0.9, layers), generator.uniform(0.5, 1, layers)
        shrunk = (1 - rates) * (below if form == "linear" else 1)
        curve = 0.7 * np.cumprod(shrunk) * (1 if form == "linear" else below)
        shifted = np.maximum(curve + generator.normal(0, 0.2, layers), 0).tolist()
        shift = theory.distribution_shift(shifted, curve.tolist())
        bound = theory.depth_bound(rates.tolist(), 0.7, 0.0, shift, form)
        assert min(shifted) <= shifted[-1] <= bound + 1e-12
