from __future__ import annotations

import math

import mpmath
import pytest

from cudt.method.privacy import delta_at, epsilon_at, noise_multiplier

#: μ, δ and ε of dp-accounting 0.6.0: get_epsilon_gaussian(1 / μ, δ, 1e-12). Recorded, so that they are compared with
#: where the library is not installed: it is in the extra `dev` alone.
DP_ACCOUNTING = [
    (0.01, 1e-5, 0.027219419814571183),
    (0.1, 1e-5, 0.34066936468432835),
    (1, 1e-5, 4.377178095681137),
    (3, 1e-5, 16.675494402828058),
    (10, 1e-5, 91.81728962466373),
    (100, 1e-5, 5425.50984614743),
    (1000, 1e-5, 504263.8929206541),
    (0.1, 1e-3, 0.19753397323969582),
    (30, 1e-3, 541.7554738491808),
    (0.5, 1e-8, 2.7076063342227563),
    (100, 1e-8, 5560.227205757961),
    (0.1, 0.1, 0),
    (3, 0.1, 7.524436068848583),
]
#: ε and σ of get_sigma_gaussian(ε, 1e-5, 1e-12).
DP_ACCOUNTING_SIGMAS = [(0.1, 30.74956613197769), (1, 3.7306316348159374), (10, 0.4998886197090323)]


@pytest.mark.parametrize(("mu", "delta", "epsilon"), DP_ACCOUNTING)
def test_epsilon_is_that_of_dp_accounting(mu, delta, epsilon):
    assert epsilon_at(delta, mu) == pytest.approx(epsilon, rel=1e-10)


@pytest.mark.parametrize(("epsilon", "sigma"), DP_ACCOUNTING_SIGMAS)
def test_the_noise_multiplier_is_that_of_dp_accounting(epsilon, sigma):
    assert noise_multiplier(epsilon, 1e-5) == pytest.approx(sigma, rel=1e-10)


def test_epsilon_is_that_of_the_installed_dp_accounting():
    library = pytest.importorskip("dp_accounting.gaussian_mechanism", reason="dp-accounting is in the extra dev")
    for mu in (0.02, 0.7, 5, 70, 700):
        for delta in (1e-9, 1e-5, 1e-2):
            assert epsilon_at(delta, mu) == pytest.approx(library.get_epsilon_gaussian(1 / mu, delta), rel=1e-9)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize("mu", [0.03, 0.4, 2, 20, 150])
def test_epsilon_solves_the_equation_in_high_precision(mu, delta):
    with mpmath.workdps(50):
        low, high = mpmath.mpf(0), mpmath.mpf(mu) * (38 + mpmath.mpf(mu) / 2)
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (low, middle) if _literal_delta(middle, mpmath.mpf(mu)) <= delta else (middle, high)
    assert epsilon_at(delta, mu) == pytest.approx(float(high), rel=1e-9)


def _literal_delta(epsilon, mu):
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("epsilon", "mu"), [(0.1, 0.2), (1, 0.5), (3, 1.5), (20, 4)])
def test_delta_is_an_integral_over_the_privacy_loss(epsilon, mu):
    # The privacy loss is normal with mean μ²/2 and variance μ²; δ(ε) = E[(1 − e^(ε − loss))₊].
    steps = 200_000
    low, high = epsilon, mu * mu / 2 + 12 * mu + epsilon
    total = 0.0
    for step in range(steps):
        loss = low + (high - low) * (step + 0.5) / steps
        density = math.exp(-((loss - mu * mu / 2) ** 2) / (2 * mu * mu)) / (mu * math.sqrt(2 * math.pi))
        total += (1 - math.exp(epsilon - loss)) * density * (high - low) / steps
    assert delta_at(epsilon, mu) == pytest.approx(total, rel=1e-6)


def test_without_noise_nothing_is_private_and_without_a_difference_everything_is():
    assert epsilon_at(1e-5, math.inf) == math.inf
    assert epsilon_at(1e-5, 0) == 0


def test_much_noise_needs_no_epsilon():
    # δ(0) is the total variation distance erf(μ / √8).
    assert delta_at(0, 1e-6) == pytest.approx(math.erf(1e-6 / math.sqrt(8)), rel=1e-6)
    assert epsilon_at(1e-5, 1e-6) == 0


def test_epsilon_falls_with_noise_and_stays_finite():
    found = [epsilon_at(1e-5, mu) for mu in (1e-3, 1e-2, 0.1, 1, 10, 1e2, 1e3, 1e4, 1e5)]
    assert found == sorted(found)
    # For large μ, ε → μ²/2 + μ·z with Φ(−z) = δ.
    assert found[-1] == pytest.approx(1e10 / 2 + 1e5 * 4.264890793922825, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0, 0.5, 10, 1000])
def test_the_noise_multiplier_is_the_inverse(epsilon):
    assert epsilon_at(1e-5, 1 / noise_multiplier(epsilon, 1e-5)) == pytest.approx(epsilon, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("delta", [0, 1, -1, math.nan])
def test_a_delta_that_is_no_probability_is_refused(delta):
    with pytest.raises(ValueError, match="δ must be between 0 and 1"):
        epsilon_at(delta, 1)


def test_a_negative_epsilon_is_refused():
    with pytest.raises(ValueError, match="ε must be at least 0, got -1"):
        noise_multiplier(-1, 1e-5)
