from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cudt.method.constraints import (
    allowed_losses,
    descent_violations,
    effective_weights,
    rate_for_target,
    rates_per_layer,
)

FORMS = ["linear", "log", "ladder"]


def literal_violations(f: list[float], f_0: float, rates: list[float], form: str) -> list[float]:
    g = []
    for layer, (loss, rate) in enumerate(zip(f, rates, strict=True)):
        before = f_0 if layer == 0 else f[layer - 1]
        if form == "ladder":
            bound = f_0
            for one in rates[: layer + 1]:
                bound *= 1 - one
            g.append(loss - bound)
        elif form == "linear":
            g.append(loss - (1 - rate) * before)
        else:
            g.append(math.log(loss) - math.log(before) - math.log(1 - rate))
    return g


@pytest.mark.parametrize("form", FORMS)
def test_violations_equal_a_literal_loop(form):
    rng = np.random.default_rng(0)
    f, rates = rng.uniform(0.1, 3, 7).tolist(), rng.uniform(0, 0.9, 7).tolist()
    ours = descent_violations(torch.tensor(f, dtype=torch.double), 1.3, rates, form)
    assert ours.tolist() == pytest.approx(literal_violations(f, 1.3, rates, form), abs=1e-12)


def random_losses() -> torch.Tensor:
    """500 points of five layers, most of them near the bounds of α = 0.2 from f_0 = 0.7."""
    noise = torch.rand(500, 5, dtype=torch.double, generator=torch.Generator().manual_seed(0)) + 0.5
    return noise * 0.7 * 0.8 ** torch.arange(1, 6)


def test_linear_and_log_have_the_same_feasible_set():
    for row in random_losses():
        linear, log = (
            descent_violations(row, 0.7, [0.2] * 5, form) <= 0 for form in ("linear", "log")
        )
        assert torch.equal(linear, log)


def test_what_meets_the_linear_form_up_to_a_layer_meets_the_ladder_there_and_not_the_other_way_round():
    counts = {"both": 0, "ladder only": 0}
    for row in random_losses():
        linear, ladder = (
            descent_violations(row, 0.7, [0.2] * 5, form) <= 1e-12 for form in ("linear", "ladder")
        )
        so_far = linear.long().cumprod(0).bool()
        assert bool((ladder | ~so_far).all())
        counts["both"] += int((ladder & so_far).sum())
        counts["ladder only"] += int((ladder & ~linear).sum())
    assert min(counts.values()) > 100


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_of_what_is_allowed_has_no_violation(form):
    f, rates = torch.tensor([0.6, 0.5, 0.45], dtype=torch.double), [0.1, 0.3, 0.2]
    for layer in range(3):
        met = f.clone()
        met[layer] = allowed_losses(f, 0.7, rates, form)[layer]
        assert descent_violations(met, 0.7, rates, form)[layer].item() == pytest.approx(
            0, abs=1e-12
        )


def test_log_form_does_not_depend_on_the_scale_of_the_loss():
    f = torch.tensor([0.6, 0.5, 0.45])
    small = descent_violations(f, 0.7, [0.1] * 3, "log")
    assert torch.allclose(small, descent_violations(f * 1e6, 0.7e6, [0.1] * 3, "log"), atol=1e-6)


def test_a_loss_that_underflows_to_zero_keeps_the_log_form_finite():
    assert torch.isfinite(
        descent_violations(torch.tensor([0.5, 0.0, 0.0]), 0.7, [0.1] * 3, "log")
    ).all()


def test_target_rate_ends_at_the_target():
    rate = rate_for_target(0.05, 0.69, 6)
    assert 0.69 * (1 - rate) ** 6 == pytest.approx(0.05)


@pytest.mark.parametrize("target", [0.69, 1.0, 0.0, -1.0])
def test_a_target_outside_zero_and_reference_is_refused(target):
    with pytest.raises(ValueError, match="between 0 and the reference"):
        rate_for_target(target, 0.69, 6)


def test_rates_must_fit_the_model():
    assert rates_per_layer(0.1, 3) == [0.1, 0.1, 0.1]
    with pytest.raises(ValueError, match="3 rates for a model of 3 layers, got 2"):
        rates_per_layer([0.1, 0.2], 3)
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        rates_per_layer([0.1, 1.0, 0.2], 3)
    with pytest.raises(ValueError, match="n_layers must be at least 1, got 0"):
        rates_per_layer(0.1, 0)


@pytest.mark.parametrize("form", FORMS)
def test_numpy_arrays_give_the_numbers_of_tensors_to_the_last_bit(form):
    rng = np.random.default_rng(0)
    f, rates = rng.uniform(0.1, 3, (7, 4)), rng.uniform(0, 0.9, 7).tolist()
    assert np.array_equal(
        allowed_losses(f, 1.3, rates, form),
        allowed_losses(torch.tensor(f), 1.3, rates, form).numpy(),
    )
    for gradient in ("full", "proxy"):
        weights = (
            effective_weights(one, rates, form, gradient)
            for one in (f[:, 0], torch.tensor(f[:, 0]))
        )
        assert next(weights).tolist() == next(weights).tolist()
