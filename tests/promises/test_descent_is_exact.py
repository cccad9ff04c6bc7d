"""Descent is exact: solutions known in closed form, steps written out by hand, published rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent

NO_RESILIENCE: dict[str, Any] = {}
SLACK: dict[str, Any] = {"resilience": "slack", "beta": 2.0}
DECAY: dict[str, Any] = {"resilience": "decay", "beta": 2.0}

# ---------------------------------------------------------------- an exact constrained optimum


def solve(descent: LayerwiseDescent, losses: Callable[[Tensor], Tensor], start: Any) -> Any:
    p = torch.tensor(start, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1)
    for _ in range(2000):
        f = losses(p)
        optimizer.zero_grad()
        descent.lagrangian(f).backward()
        descent.dual_step(f)
        optimizer.step()
    return p.tolist()


def first_active(p: Tensor) -> Tensor:
    """min ½(p−1)² + 0.1 with f_1 = p ≤ 0.5·f_0, f_0 = 1: p = 0.5, λ_1 = 0.5."""
    return torch.stack([p, 0.5 * (p - 1) ** 2 + 0.1])


def first_active_in_logs(p: Tensor) -> Tensor:
    """min ½(p−1)² − 4 = log f_2 with log f_1 = p ≤ log 0.5: λ_1 = 1 − log 0.5 (`first_active` is
    not convex there)."""
    return torch.stack([p.exp(), (0.5 * (p - 1) ** 2 - 4).exp()])


def second_active(p: Tensor) -> Tensor:
    """min ½(p−0.2)² + 0.1 ≤ 0.4·p: p = 0.6 − √0.12, λ_2 = (p−0.2)/(0.6−p)."""
    return torch.stack([p, 0.5 * (p - 0.2) ** 2 + 0.1])


def on_a_ladder(p: Tensor) -> Tensor:
    """min ½(p−1)² + 0.1 with f_2 = p ≤ 0.8·0.5·f_0 whatever f_1 is: p = 0.4, λ_2 = 0.6."""
    return torch.stack([0.2 + 0 * p, p, 0.5 * (p - 1) ** 2 + 0.1])


P_SECOND = 0.6 - math.sqrt(0.12)
LAMBDA_SECOND = (P_SECOND - 0.2) / (0.6 - P_SECOND)


@pytest.mark.parametrize(
    ("losses", "rates", "form", "p", "multipliers"),
    [
        (first_active, [0.5, 0.4], "linear", 0.5, [0.5, 0.0]),
        (first_active_in_logs, [0.5, 0.4], "log", math.log(0.5), [1 - math.log(0.5), 0.0]),
        (second_active, [0.5, 0.6], "linear", P_SECOND, [0.0, LAMBDA_SECOND]),
        (second_active, [0.5, 0.6], "log", P_SECOND, [0.0, LAMBDA_SECOND]),
        (on_a_ladder, [0.2, 0.5, 0.0], "ladder", 0.4, [0.0, 0.6, 0.0]),
    ],
)
def test_finds_the_optimum_and_multipliers_of_a_convex_problem(losses, rates, form, p, multipliers):
    dual = Dual(optimizer="sgd", learning_rate=0.1)
    descent = LayerwiseDescent(len(rates), rates, 1.0, form=form, dual=dual)
    assert solve(descent, losses, start=0.4) == pytest.approx(p, abs=1e-4)
    assert descent.multiplier_values.tolist() == pytest.approx(multipliers, abs=1e-3)


def two_free_layers(p: Tensor) -> Tensor:
    """min ½‖p − 1‖² + 0.1 = f_3 with f_1 = p_1 and f_2 = p_2 ≤ 0.5·p_1 (the other two constraints
    are inactive)."""
    return torch.stack([p[0], p[1], 0.5 * (p - 1).square().sum() + 0.1])


@pytest.mark.parametrize(
    ("gradient", "p", "multiplier", "weight"),
    [
        # Stationary: p_1 − 1 = 0.5·λ_2 and 1 − p_2 = λ_2. Layer 1 is raised above its own optimum,
        # to make room.
        ("full", [1.2, 0.6], 0.4, -0.2),
        # Stationary: p_1 = 1 and 1 − p_2 = λ_2: layer 1 stays at its own optimum, and layer 2 does
        # all the work.
        ("proxy", [1.0, 0.5], 0.5, 0.0),
    ],
)
def test_finds_the_solutions_of_the_full_and_of_the_proxy_problem(gradient, p, multiplier, weight):
    dual = Dual(optimizer="sgd", learning_rate=0.1)
    descent = LayerwiseDescent(3, [0.1, 0.5, 0.0], 2.0, gradient=gradient, dual=dual)
    assert solve(descent, two_free_layers, start=[0.7, 0.9]) == pytest.approx(p, abs=1e-4)
    assert descent.multiplier_values.tolist() == pytest.approx([0, multiplier, 0], abs=1e-4)
    assert descent.effective_weights()[0].item() == pytest.approx(weight, abs=1e-4)


def test_resilience_relaxes_the_optimum_as_its_price_says():
    # min ½(p−1)² + 0.1 + (β/2)u², p ≤ 0.5 + u: u = λ/β and 1 − p = λ, so λ = 0.5·β/(1+β).
    beta, dual = 3.0, Dual(optimizer="sgd", learning_rate=0.05)
    descent = LayerwiseDescent(2, [0.5, 0.1], 1.0, resilience="decay", beta=beta, dual=dual)
    p = solve(descent, first_active, start=0.4)
    multiplier = 0.5 * beta / (1 + beta)
    assert descent.multiplier_values[0].item() == pytest.approx(multiplier, abs=1e-3)
    assert p == pytest.approx(0.5 + multiplier / beta, abs=1e-3)


# ---------------------------------------------------------------- two steps by hand


class HandAdam:
    """Adam as published, on one number; `sign` +1 descends, −1 ascends."""

    def __init__(self, rate: float, sign: int) -> None:
        self.rate, self.sign, self.m, self.v, self.t = rate, sign, 0.0, 0.0, 0

    def step(self, value: float, gradient: float) -> float:
        gradient *= self.sign
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        return value - self.rate * (self.m / (1 - 0.9**self.t)) / (
            math.sqrt(self.v / (1 - 0.999**self.t)) + 1e-8
        )


@pytest.mark.parametrize("resilience", ["none", "slack", "decay"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_primal_dual_steps_equal_those_by_hand(resilience, optimizer):
    alpha, f_0, primal_rate, dual_rate, beta = 0.2, 1.0, 0.1, 0.3, 1.5
    dual = Dual(optimizer=optimizer, learning_rate=dual_rate)
    price = None if resilience == "none" else beta
    descent = LayerwiseDescent(2, alpha, f_0, resilience=resilience, beta=price, dual=dual)
    w = torch.tensor([0.9, 1.1], requires_grad=True)
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    primal = kind([w], lr=primal_rate)
    descent.add_slack_to(primal)

    # By hand: f_1 = w_1², f_2 = w_2², L = f_2 + Σ λ_l(g_l − u_l) + β/2 Σ u_l².
    a, b = 0.9, 1.1
    lam, u = [0.0, 0.0], [0.0, 0.0]
    hand = [HandAdam(primal_rate, 1) for _ in range(4)]
    hand += [HandAdam(dual_rate, -1) for _ in range(2)]

    def advance(index: int, value: float, gradient: float) -> float:
        if optimizer == "adam":
            return hand[index].step(value, gradient)
        return value - primal_rate * gradient if index < 4 else value + dual_rate * gradient

    for _ in range(2):
        f = w.square()
        primal.zero_grad()
        descent.lagrangian(f).backward()
        descent.dual_step(f)
        primal.step()

        g = [a * a - 0.8 * f_0, b * b - 0.8 * a * a]
        grad_a = 2 * a * (lam[0] - 0.8 * lam[1])
        grad_b = 2 * b * (1 + lam[1])
        grad_u = [(beta * u[i] - lam[i]) if resilience == "slack" else 0.0 for i in range(2)]
        relax = {"none": [0.0, 0.0], "slack": u, "decay": [one / beta for one in lam]}[resilience]
        lam = [max(0.0, advance(4 + i, lam[i], g[i] - relax[i])) for i in range(2)]
        a, b = advance(0, a, grad_a), advance(1, b, grad_b)
        if resilience == "slack":
            u = [max(0.0, advance(2 + i, u[i], grad_u[i])) for i in range(2)]

    assert w.tolist() == pytest.approx([a, b], abs=1e-6)
    assert descent.multiplier_values.tolist() == pytest.approx(lam, abs=1e-6)
    relaxed = {"none": [0.0, 0.0], "slack": u, "decay": [one / beta for one in lam]}[resilience]
    assert descent.slack.tolist() == pytest.approx(relaxed, abs=1e-6)
    assert max(lam) > 0


def test_nupi_steps_equal_its_published_recursion():
    rate, gain, smoothing = 0.1, 2.0, 0.5
    dual = Dual(optimizer="nupi", learning_rate=rate, proportional_gain=gain, smoothing=smoothing)
    descent = LayerwiseDescent(1, 0.0, 1.0, dual=dual)
    lam, xi = 0.0, 0.0
    for loss in (1.5, 1.3, 1.8, 1.1):
        descent.dual_step(torch.tensor([loss]))
        error = loss - 1.0
        new_xi = smoothing * xi + (1 - smoothing) * error
        lam = max(0.0, lam + rate * (error + gain * (new_xi - xi)))
        xi = new_xi
        assert descent.multiplier_values.item() == pytest.approx(lam, abs=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "nupi"])
def test_decoupled_steps_equal_the_printed_rule_around_the_same_step_without_decay(optimizer):
    beta, rate = 0.5, 0.1
    dual = Dual(optimizer=optimizer, learning_rate=rate)
    plain = LayerwiseDescent(1, 0.0, 1.0, dual=dual)
    descent = LayerwiseDescent(
        1, 0.0, 1.0, resilience="decay", beta=beta, decay="decoupled", dual=dual
    )
    multiplier = 0.0
    for loss in (1.5, 1.3, 1.8, 0.2, 1.1):
        # What the optimiser adds does not depend on λ; far from 0 nothing is projected.
        plain.multiplier_values.fill_(100.0)
        plain.dual_step(torch.tensor([loss]))
        added = plain.multiplier_values.item() - 100.0
        multiplier = max(0.0, (1 - rate / beta) * multiplier + added)
        descent.dual_step(torch.tensor([loss]))
        assert descent.multiplier_values.item() == pytest.approx(multiplier, abs=1e-4)


# ---------------------------------------------------------------- where λ and u settle


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "nupi"])
@pytest.mark.parametrize("decay", ["coupled", "decoupled"])
def test_where_a_decaying_multiplier_settles(optimizer, decay):
    dual, beta, violations = Dual(optimizer=optimizer, learning_rate=0.03), 2.0, (1 / 64, 0.25, 4.0)
    descent = LayerwiseDescent(3, 0.0, 1.0, form="ladder", decay=decay, dual=dual, **DECAY)
    for _ in range(800):
        descent.dual_step(1 + torch.tensor(violations))
    # Adam's step does not depend on the size of the gradient.
    is_flat = (optimizer, decay) == ("adam", "decoupled")
    expected = [beta if is_flat else beta * violation for violation in violations]
    assert descent.multiplier_values.tolist() == pytest.approx(expected, rel=0.02)


# ---------------------------------------------------------------- the weight of each layer


@pytest.mark.parametrize("n_layers", [1, 2, 5])
@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
def test_effective_weights_are_the_gradient_of_the_lagrangian(form, n_layers):
    generator = torch.Generator().manual_seed(n_layers)
    for gradient, resilience in itertools.product(
        ["full"] if form == "ladder" else ["full", "proxy"], [NO_RESILIENCE, SLACK, DECAY]
    ):
        rates = torch.rand(n_layers, generator=generator).tolist()
        keys: dict[str, Any] = {"form": form, "gradient": gradient, **resilience}
        descent = LayerwiseDescent(n_layers, rates, 1.0, **keys)
        descent.multiplier_values.copy_(3 * torch.rand(n_layers, generator=generator))
        # The unit is f, or log f in the log form.
        unit = torch.rand(n_layers, generator=generator).requires_grad_()
        value = descent.lagrangian(unit.exp() if form == "log" else unit)
        (expected,) = torch.autograd.grad(value, unit)
        assert descent.effective_weights().tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def random_points(count: int) -> Iterator[dict[str, Any]]:
    """Losses, rates, multipliers and slacks of one to six layers, and the constraints of an
    update."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        n_layers = int(rng.integers(1, 7))
        yield {
            "f": torch.tensor(rng.uniform(0.05, 4, n_layers), dtype=torch.float),
            "rates": rng.uniform(0, 0.9, n_layers).tolist(),
            "multipliers": (rng.uniform(0, 8, n_layers) * rng.integers(0, 2, n_layers)).tolist(),
            "slack": rng.uniform(0, 2, n_layers).tolist(),
            "keys": {
                "form": str(rng.choice(["linear", "log"])),
                **[NO_RESILIENCE, SLACK, DECAY][rng.integers(3)],
            },
        }


def at(point: dict[str, Any], gradient: Any, optimizer: str = "adam") -> LayerwiseDescent:
    """A problem with the multipliers and slacks of a point."""
    dual = Dual(optimizer=optimizer, learning_rate=0.1)
    descent = LayerwiseDescent(
        len(point["f"]), point["rates"], 1.0, gradient=gradient, dual=dual, **point["keys"]
    )
    descent.multiplier_values.copy_(torch.tensor(point["multipliers"]))
    if descent.trained_slack is not None:
        descent.trained_slack.data.copy_(torch.tensor(point["slack"]))
    return descent


def test_no_layer_has_a_negative_weight_in_the_proxys_step():
    n_negative = {"full": 0, "proxy": 0}
    for point, gradient in itertools.product(random_points(300), n_negative):
        descent, f = at(point, gradient), point["f"].clone().requires_grad_()
        (weights,) = torch.autograd.grad(descent.lagrangian(f), f)
        n_negative[gradient] += bool(weights.min() < 0) + bool(
            descent.effective_weights().min() < 0
        )
    assert n_negative["proxy"] == 0
    assert n_negative["full"] > 100


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "nupi"])
def test_the_proxy_changes_neither_the_value_nor_the_dual_step_nor_the_slacks_gradient(optimizer):
    for point in random_points(100):
        full, proxy = at(point, "full", optimizer), at(point, "proxy", optimizer)
        f = point["f"]
        assert torch.equal(full.lagrangian(f), proxy.lagrangian(f))
        for one, other in zip(full.parameters(), proxy.parameters(), strict=True):
            full.lagrangian(f).backward()
            proxy.lagrangian(f).backward()
            assert one.grad is not None
            assert other.grad is not None
            assert torch.equal(one.grad, other.grad)
        for _ in range(2):
            full.dual_step(f)
            proxy.dual_step(f.clone().requires_grad_())
            assert torch.equal(full.multiplier_values, proxy.multiplier_values)


# ---------------------------------------------------------------- slack in a primal optimiser


def test_u_descends_with_the_weights_and_stays_above_zero():
    dual, weight = Dual(optimizer="sgd", learning_rate=0.5), torch.tensor(1.0, requires_grad=True)
    descent = LayerwiseDescent(2, 0.1, 1.0, dual=dual, **SLACK)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    descent.add_slack_to(optimizer)
    u, multipliers = torch.zeros(2), torch.zeros(2)
    for _ in range(30):
        optimizer.zero_grad()
        f = torch.tensor([1.2, 0.7]) * weight
        g = torch.stack([f[0] - 0.9, f[1] - 0.9 * f[0]]).detach()
        descent.lagrangian(f).backward()
        descent.dual_step(f)
        optimizer.step()
        # ∂/∂u (−λ·u + β/2·‖u‖²) = β·u − λ, and λ ascends on g − u.
        stepped = u - 0.1 * (2.0 * u - multipliers)
        multipliers = (multipliers + 0.5 * (g - u)).clamp_min(0)
        u = stepped.clamp_min(0)
        assert descent.slack.tolist() == pytest.approx(u.tolist(), abs=1e-6)
        assert descent.multiplier_values.tolist() == pytest.approx(multipliers.tolist(), abs=1e-5)
    assert u[0] > 0


def test_u_does_not_decay_with_the_weights():
    descent, weight = LayerwiseDescent(2, 0.1, 1.0, **SLACK), torch.ones(1, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    descent.add_slack_to(optimizer)
    (slack,) = descent.parameters()
    slack.data.fill_(0.4)
    weight.grad, slack.grad = torch.zeros(1), torch.zeros(2)
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.1 * 0.5)
    assert slack.tolist() == pytest.approx([0.4, 0.4])


def test_u_moves_alike_in_every_unit_of_the_loss():
    found = []
    for unit in (1.0, 1e6):
        slack: dict[str, Any] = {"resilience": "slack", "beta": 2.0 / unit}
        descent = LayerwiseDescent(2, 0.1, unit, **slack)
        weight = torch.tensor(1.0, requires_grad=True)
        optimizer = torch.optim.Adam([{"params": [weight], "lr": 0.01}])
        descent.add_slack_to(optimizer)
        for _ in range(30):
            optimizer.zero_grad()
            f = unit * torch.tensor([1.2, 0.7]) * weight
            descent.lagrangian(f).backward()
            descent.dual_step(f)
            optimizer.step()
        found.append([*(descent.slack / unit).tolist(), *descent.multiplier_values.tolist()])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[0][0] > 0.05
