"""Resilience: where slacks and decaying multipliers settle, and how they begin again."""

from __future__ import annotations

import math

import pytest
import torch

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent
from tests.method.test_descent import first_active, solve


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "nupi"])
@pytest.mark.parametrize("resilience", ["slack", "decay"])
def test_slack_and_decay_settle_at_beta_times_a_constant_violation(resilience, optimizer):
    beta, f_0 = 2.0, 1.0
    f = torch.tensor([1.3, 1.0, 1.9])
    violations = torch.tensor([0.3, -0.3, 0.9])
    descent = LayerwiseDescent(
        3,
        0.0,
        f_0,
        resilience=resilience,
        beta=beta,
        dual=Dual(optimizer=optimizer, learning_rate=0.01),
    )
    assert torch.allclose(descent.violations(f), violations)
    primal = torch.optim.SGD(
        [*descent.slack_parameters(), torch.zeros(1, requires_grad=True)], lr=0.05
    )
    for _ in range(2000):
        primal.zero_grad()
        lagrangian = descent.lagrangian(f)
        if lagrangian.requires_grad:
            lagrangian.backward()
        descent.dual_step(f)
        primal.step()
        descent.project_slack()
    expected = (beta * violations).clamp_min(0)
    assert torch.allclose(descent.multiplier_values, expected, atol=0.02)
    assert torch.allclose(descent.slack, expected / beta, atol=0.02)


def decaying(optimizer: str, decay: str, beta: float, rate: float = 0.01) -> LayerwiseDescent:
    """A constraint f_1 ≤ 1 whose multiplier decays."""
    dual = Dual(optimizer=optimizer, learning_rate=rate)
    return LayerwiseDescent(1, 0.0, 1.0, resilience="decay", beta=beta, decay=decay, dual=dual)  # type: ignore[arg-type]


@pytest.mark.parametrize("violation", [1 / 64, 0.25, 4.0])
@pytest.mark.parametrize(
    ("optimizer", "decay", "settles"),
    [
        ("adam", "coupled", lambda beta, v: beta * v),
        ("adam", "decoupled", lambda beta, v: beta),
        ("sgd", "coupled", lambda beta, v: beta * v),
        ("sgd", "decoupled", lambda beta, v: beta * v),
        ("nupi", "coupled", lambda beta, v: beta * v),
        ("nupi", "decoupled", lambda beta, v: beta * v),
    ],
)
def test_where_a_decaying_multiplier_settles(optimizer, decay, settles, violation):
    beta = 2.0
    expected, f = settles(beta, violation), torch.tensor([1 + violation])
    # A fixed point: from there no step moves it (the numbers have no rounding errors, which Adam
    # would follow) ...
    descent = decaying(optimizer, decay, beta)
    if (optimizer, decay) == ("nupi", "decoupled"):
        # Its first step also answers the change of the gradient, from 0 to v.
        descent.dual_step(f)
    descent._multiplier.weight.data.fill_(expected)
    for _ in range(3):
        descent.dual_step(f)
    assert descent.multiplier_values.item() == pytest.approx(expected, rel=1e-4)
    # ... and one that is reached from 0.
    descent = decaying(optimizer, decay, beta, rate=0.03)
    for _ in range(800):
        descent.dual_step(f)
    assert descent.multiplier_values.item() == pytest.approx(expected, rel=0.02)


def test_decoupled_decay_under_adam_is_the_optimum_of_a_linear_price():
    # min ½(p−1)² + 0.1 + β·[p − 0.5]₊ with β = 0.3: 1 − p = λ = β. Coupled decay has the quadratic
    # price instead.
    beta, dual = 0.3, Dual(learning_rate=0.01)
    found = {}
    for decay in ("coupled", "decoupled"):
        descent = LayerwiseDescent(
            2, [0.5, 0.0], 1.0, resilience="decay", beta=beta, decay=decay, dual=dual
        )
        found[decay] = solve(descent, first_active, start=0.4), descent.multiplier_values[0].item()
    # Adam forgets the larger violations of the beginning slowly.
    assert found["decoupled"] == pytest.approx((1 - beta, beta), abs=0.01)
    multiplier = 0.5 * beta / (1 + beta)
    assert found["coupled"] == pytest.approx((0.5 + multiplier / beta, multiplier), abs=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "nupi"])
def test_decoupled_steps_equal_the_printed_rule_around_the_same_step_without_decay(optimizer):
    beta, rate = 0.5, 0.1
    descent, plain = (
        decaying(optimizer, "decoupled", beta, rate),
        LayerwiseDescent(1, 0.0, 1.0, dual=Dual(optimizer=optimizer, learning_rate=rate)),
    )
    multiplier = 0.0
    for loss in (1.5, 1.3, 1.8, 0.2, 1.1):
        # What the optimiser adds does not depend on λ; far from 0 nothing is projected.
        plain._multiplier.weight.data.fill_(100.0)
        plain.dual_step(torch.tensor([loss]))
        multiplier = max(
            0.0, (1 - rate / beta) * multiplier + plain.multiplier_values.item() - 100.0
        )
        descent.dual_step(torch.tensor([loss]))
        assert descent.multiplier_values.item() == pytest.approx(multiplier, abs=1e-4)


def test_slack_restarts_at_zero():
    descent = LayerwiseDescent(2, 0.1, 1.0, resilience="slack", beta=1.0)
    next(descent.slack_parameters()).data.fill_(0.4)
    assert descent.slack.tolist() == pytest.approx([0.4, 0.4])
    descent.restart_slack()
    assert descent.slack.tolist() == [0.0, 0.0]


def test_log_slack_in_units_of_the_loss_is_what_the_relaxed_constraint_allows_more():
    descent = LayerwiseDescent(2, 0.2, 1.0, form="log", resilience="slack", beta=1.0)
    next(descent.slack_parameters()).data.copy_(torch.tensor([0.1, 0.3]))
    f = torch.tensor([0.9, 0.7])
    more = descent.slack_in_loss_units(f)
    assert more.tolist() == pytest.approx(
        [0.8 * math.exp(0.1) - 0.8, 0.72 * math.exp(0.3) - 0.72], rel=1e-5
    )


def test_beta_goes_with_resilience_only():
    for resilience, beta in (("none", 1.0), ("slack", None), ("decay", None)):
        with pytest.raises(ValueError, match="price of resilience"):
            LayerwiseDescent(2, 0.1, 1.0, resilience=resilience, beta=beta)  # type: ignore[arg-type]
