"""Bounds and measured constants against curves made by hand, slow literal twins, and the
inequalities they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cudt.method import bounds

CURVE = [0.6, 0.3, 0.15, 0.18]


def random_curves(n: int = 200):
    generator = np.random.default_rng(0)
    for _ in range(n):
        layers = int(generator.integers(1, 9))
        yield (
            generator,
            layers,
            generator.uniform(0.01, 2, layers).tolist(),
            generator.uniform(0.01, 2, layers).tolist(),
        )


# ---------------------------------------------------------------- one curve


def test_the_best_layer_and_what_the_last_costs():
    assert bounds.best_layer(CURVE) == 3
    assert bounds.gap_to_best(CURVE) == pytest.approx(0.03)


def test_rates_of_a_curve_made_by_hand():
    assert bounds.achieved_rates(CURVE, 0.75) == pytest.approx([0.2, 0.5, 0.5, -0.2])


def test_the_mean_rate_is_the_constant_one_with_the_same_last_loss():
    for _, layers, curve, _ in random_curves():
        rate = bounds.mean_rate(curve, 0.7)
        assert 0.7 * (1 - rate) ** layers == pytest.approx(curve[-1])
    assert bounds.mean_rate([0.9 * 0.7, 0.81 * 0.7], 0.7) == pytest.approx(0.1)


# ---------------------------------------------------------------- the constants


def test_a_shift_in_one_direction_is_its_largest_change():
    assert bounds.distribution_shift([0.7, 0.5, 0.4], [0.6, 0.3, 0.35]) == pytest.approx(0.2)
    assert bounds.distribution_shift([0.6, 0.3, 0.35], [0.7, 0.5, 0.4]) == pytest.approx(0.2)
    assert bounds.distribution_shift(CURVE, CURVE) == 0


def test_zeta_is_the_largest_difference_over_layers():
    assert bounds.estimation_gap([0.5, 0.3], [0.4, 0.2]) == pytest.approx(0.1)
    # One loss rises and the other falls: the violation of layer 2 changes by 0.1 + 0.9 · 0.1.
    train, validation, alpha = [1.0, 0.9], [0.9, 1.0], 0.1
    violation = validation[1] - (1 - alpha) * validation[0]
    assert train[1] - (1 - alpha) * train[0] == pytest.approx(0)
    assert violation == pytest.approx(0.19)
    assert violation <= bounds.estimation_gap(train, validation) == pytest.approx(0.2)


# ---------------------------------------------------------------- what they promise


def test_no_violation_grows_by_more_than_the_shift():
    """The corollary: g_l(γ) ≤ g_l(γ_train) + C·τ; the largest |change| alone would not be
    enough."""
    broken_by_largest_change = 0
    for generator, layers, curve, trained in random_curves():
        rates = generator.uniform(0, 0.9, layers)
        before, after = ([0.7, *values] for values in (trained, curve))
        growth = max(
            (after[layer] - (1 - rates[layer - 1]) * after[layer - 1])
            - (before[layer] - (1 - rates[layer - 1]) * before[layer - 1])
            for layer in range(1, layers + 1)
        )
        assert growth <= bounds.distribution_shift(curve, trained) + 1e-12
        broken_by_largest_change += growth > max(abs(np.subtract(curve, trained))) + 1e-12
    assert broken_by_largest_change


def test_the_bound_of_a_hand_made_case():
    assert bounds.limit_bound([0.1, 0.1], 0.02, 0.03) == pytest.approx(0.5)
    assert bounds.limit_bound([0.5, 0.1], 0.02, 0.03) == pytest.approx(0.5)
    # b_1 = 0.9·0.7 + 0.05 = 0.68, b_2 = 0.8·0.68 + 0.05
    assert bounds.depth_bound([0.1, 0.2], 0.7, 0.02, 0.03) == pytest.approx(0.594)


def test_the_bound_at_a_depth_tends_to_the_limit():
    assert bounds.depth_bound([0.1] * 500, 0.7, 0.02, 0.03) == pytest.approx(
        bounds.limit_bound([0.1], 0.02, 0.03)
    )


def test_the_bound_at_a_depth_has_the_closed_form_of_a_geometric_series():
    rate, error = 0.3, 0.05
    closed = 0.7**6 * 2.0 + error * (1 - 0.7**6) / rate
    assert bounds.depth_bound([rate] * 6, 2.0, 0.01, 0.04) == pytest.approx(closed)


def test_losses_that_meet_the_constraints_stay_below_the_bound_after_any_shift():
    """A feasible curve, shifted by anything: its last loss, and so its best, is at most the bound
    at its depth."""
    for generator, layers, _, _ in random_curves():
        rates = generator.uniform(0, 0.9, layers).tolist()
        curve: list[float] = []
        for rate in rates:
            curve.append((1 - rate) * (curve[-1] if curve else 0.7) * generator.uniform(0.5, 1))
        shifted = np.maximum(curve + generator.normal(0, 0.2, layers), 0).tolist()
        bound = bounds.depth_bound(rates, 0.7, 0.0, bounds.distribution_shift(shifted, curve))
        assert min(shifted) <= shifted[-1] <= bound + 1e-12


def test_on_the_ladder_errors_do_not_add_up():
    assert bounds.limit_bound([0.1, 0.2], 0.02, 0.03, "ladder") == pytest.approx(0.05)
    assert bounds.limit_bound([0.1, 0.0], 0.02, 0.03, "ladder") == math.inf
    assert bounds.depth_bound([0.1, 0.2], 0.7, 0.02, 0.03, "ladder") == pytest.approx(
        0.9 * 0.8 * 0.7 + 0.05
    )


def test_losses_on_the_ladder_stay_below_its_bound_after_any_shift():
    for generator, layers, _, _ in random_curves():
        rates = generator.uniform(0, 0.9, layers)
        curve = 0.7 * np.cumprod(1 - rates) * generator.uniform(0.3, 1, layers)
        shifted = np.maximum(curve + generator.normal(0, 0.2, layers), 0).tolist()
        shift = bounds.distribution_shift(shifted, curve.tolist())
        assert shifted[-1] <= bounds.depth_bound(rates.tolist(), 0.7, 0.0, shift, "ladder") + 1e-12
