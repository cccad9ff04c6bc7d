from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives.base import make_objective
from tests.method.test_descent_module import trained

# ---------------------------------------------------------------- the weight of each layer


@pytest.mark.parametrize(
    "resilience", [{}, {"resilience": "slack", "beta": 2.0}, {"resilience": "decay", "beta": 2.0}]
)
@pytest.mark.parametrize("gradient", ["full", "proxy"])
@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
@pytest.mark.parametrize("n_layers", [1, 2, 5])
def test_effective_weights_are_the_gradient_of_the_lagrangian(form, gradient, n_layers, resilience):
    generator = torch.Generator().manual_seed(n_layers)
    rates = torch.rand(n_layers, generator=generator).tolist()
    descent = LayerwiseDescent(n_layers, rates, 1.0, form=form, gradient=gradient, **resilience)
    descent._multiplier.weight.data.copy_(3 * torch.rand(n_layers, generator=generator))
    # The unit is f, or log f in the log form.
    unit = torch.rand(n_layers, generator=generator).requires_grad_()
    (expected,) = torch.autograd.grad(
        descent.lagrangian(unit.exp() if form == "log" else unit), unit
    )
    assert descent.effective_weights().tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def random_points(count: int) -> Iterator[dict[str, Any]]:
    """Losses, rates, multipliers and slacks of one to six layers, and the constraints of an
    update."""
    rng = np.random.default_rng(0)
    resiliences = [{}, {"resilience": "slack", "beta": 2.0}, {"resilience": "decay", "beta": 2.0}]
    for _ in range(count):
        n_layers = int(rng.integers(1, 7))
        yield {
            "f": torch.tensor(rng.uniform(0.05, 4, n_layers), dtype=torch.float),
            "rates": rng.uniform(0, 0.9, n_layers).tolist(),
            "multipliers": (rng.uniform(0, 8, n_layers) * rng.integers(0, 2, n_layers)).tolist(),
            "slack": rng.uniform(0, 2, n_layers).tolist(),
            "form": str(rng.choice(["linear", "log"])),
            "resilience": resiliences[rng.integers(3)],
        }


def at(point: dict[str, Any], gradient: str, optimizer: str = "adam") -> LayerwiseDescent:
    """A problem with the multipliers and slacks of a point."""
    dual = Dual(optimizer=optimizer, learning_rate=0.1)
    descent = LayerwiseDescent(
        len(point["f"]),
        point["rates"],
        1.0,
        form=point["form"],
        gradient=gradient,  # type: ignore[arg-type]
        dual=dual,
        **point["resilience"],
    )
    descent._multiplier.weight.data.copy_(torch.tensor(point["multipliers"]))
    for slack in descent.slack_parameters():
        slack.data.copy_(torch.tensor(point["slack"]))
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
        for slacks in zip(full.slack_parameters(), proxy.slack_parameters(), strict=True):
            full.lagrangian(f).backward()
            proxy.lagrangian(f).backward()
            assert slacks[0].grad is not None
            assert slacks[1].grad is not None
            assert torch.equal(slacks[0].grad, slacks[1].grad)
        for _ in range(2):
            full.dual_step(f)
            proxy.dual_step(f.clone().requires_grad_())
            assert torch.equal(full.multiplier_values, proxy.multiplier_values)


# ---------------------------------------------------------------- an exact constrained optimum


def solve(
    descent: LayerwiseDescent, losses: Callable[[torch.Tensor], torch.Tensor], start: Any
) -> Any:
    p = torch.tensor(start, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1)
    for _ in range(2000):
        f = losses(p)
        optimizer.zero_grad()
        descent.lagrangian(f).backward()
        descent.dual_step(f)
        optimizer.step()
    return p.tolist()


def first_active(p: torch.Tensor) -> torch.Tensor:
    """min ½(p−1)² + 0.1 with f_1 = p ≤ 0.5·f_0, f_0 = 1: p = 0.5, λ_1 = 0.5."""
    return torch.stack([p, 0.5 * (p - 1) ** 2 + 0.1])


def first_active_in_logs(p: torch.Tensor) -> torch.Tensor:
    """min ½(p−1)² − 4 = log f_2 with log f_1 = p ≤ log 0.5: λ_1 = 1 − log 0.5 (`first_active` is
    not convex there)."""
    return torch.stack([p.exp(), (0.5 * (p - 1) ** 2 - 4).exp()])


def second_active(p: torch.Tensor) -> torch.Tensor:
    """min ½(p−0.2)² + 0.1 ≤ 0.4·p: p = 0.6 − √0.12, λ_2 = (p−0.2)/(0.6−p)."""
    return torch.stack([p, 0.5 * (p - 0.2) ** 2 + 0.1])


def on_a_ladder(p: torch.Tensor) -> torch.Tensor:
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
def test_finds_the_exact_optimum_and_multipliers_of_a_convex_problem(
    losses, rates, form, p, multipliers
):
    descent = LayerwiseDescent(
        len(rates), rates, 1.0, form=form, dual=Dual(optimizer="sgd", learning_rate=0.1)
    )
    assert solve(descent, losses, start=0.4) == pytest.approx(p, abs=1e-4)
    assert descent.multiplier_values.tolist() == pytest.approx(multipliers, abs=1e-3)


def two_free_layers(p: torch.Tensor) -> torch.Tensor:
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
def test_the_exact_solutions_of_the_full_and_of_the_proxy_problem(gradient, p, multiplier, weight):
    dual = Dual(optimizer="sgd", learning_rate=0.1)
    descent = LayerwiseDescent(3, [0.1, 0.5, 0.0], 2.0, gradient=gradient, dual=dual)
    assert solve(descent, two_free_layers, start=[0.7, 0.9]) == pytest.approx(p, abs=1e-4)
    assert descent.multiplier_values.tolist() == pytest.approx([0, multiplier, 0], abs=1e-4)
    assert descent.effective_weights()[0].item() == pytest.approx(weight, abs=1e-4)


def test_resilience_relaxes_the_optimum_as_its_price_says():
    # min ½(p−1)² + 0.1 + (β/2)u², p ≤ 0.5 + u: u = λ/β and 1 − p = λ, so λ = 0.5·β/(1+β).
    beta = 3.0
    descent = LayerwiseDescent(
        2,
        [0.5, 0.1],
        1.0,
        resilience="decay",
        beta=beta,
        dual=Dual(optimizer="sgd", learning_rate=0.05),
    )
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


@pytest.mark.parametrize(("resilience", "beta"), [("none", None), ("slack", 1.5), ("decay", 1.5)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_primal_dual_steps_equal_those_by_hand(resilience, beta, optimizer):
    alpha, f_0, primal_rate, dual_rate = 0.2, 1.0, 0.1, 0.3
    descent = LayerwiseDescent(
        2,
        alpha,
        f_0,
        resilience=resilience,
        beta=beta,
        dual=Dual(optimizer=optimizer, learning_rate=dual_rate),
    )
    w = torch.tensor([0.9, 1.1], requires_grad=True)
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    primal = kind([w, *descent.slack_parameters()], lr=primal_rate)

    # By hand: f_1 = w_1², f_2 = w_2², L = f_2 + Σ λ_l(g_l − u_l) + β/2 Σ u_l².
    a, b = 0.9, 1.1
    lam, u = [0.0, 0.0], [0.0, 0.0]
    hand = [HandAdam(primal_rate, 1) for _ in range(4)] + [
        HandAdam(dual_rate, -1) for _ in range(2)
    ]

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
        descent.project_slack()

        g = [a * a - 0.8 * f_0, b * b - 0.8 * a * a]
        grad_a = 2 * a * (lam[0] - 0.8 * lam[1])
        grad_b = 2 * b * (1 + lam[1])
        grad_u = [(beta * u[i] - lam[i]) if resilience == "slack" else 0.0 for i in range(2)]
        relax = {"none": [0.0, 0.0], "slack": u, "decay": [lam[i] / (beta or 1) for i in range(2)]}[
            resilience
        ]
        lam = [max(0.0, advance(4 + i, lam[i], g[i] - relax[i])) for i in range(2)]
        a, b = advance(0, a, grad_a), advance(1, b, grad_b)
        if resilience == "slack":
            u = [max(0.0, advance(2 + i, u[i], grad_u[i])) for i in range(2)]

    assert w.tolist() == pytest.approx([a, b], abs=1e-6)
    assert descent.multiplier_values.tolist() == pytest.approx(lam, abs=1e-6)
    expected_slack = (
        u if resilience == "slack" else [value / beta for value in lam] if beta else [0.0, 0.0]
    )
    assert descent.slack.tolist() == pytest.approx(expected_slack, abs=1e-6)
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


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("value", "shown"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_losses_that_are_not_finite_are_refused_and_change_nothing(layer, value, shown):
    descent = trained()
    before = descent.multiplier_values.clone()
    f = torch.tensor([0.9, 0.8, 0.7])
    f[layer - 1] = value
    for method in (descent.lagrangian, descent.dual_step):
        with pytest.raises(ValueError, match=f"must be finite, got f_{layer} = {shown};"):
            method(f)
    assert torch.equal(descent.multiplier_values, before)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "nupi"])
@pytest.mark.parametrize("decay", ["coupled", "decoupled"])
@pytest.mark.parametrize("bad", [[math.nan, 0.5], [0.9, math.inf], [3e38, -3e38]])
def test_lambda_survives_losses_that_nobody_checked(bad, decay, optimizer):
    dual = Dual(optimizer=optimizer, learning_rate=0.1)
    steps = [
        LayerwiseDescent(
            2, 0.1, 1.0, resilience="decay", beta=2.0, decay=decay, dual=dual, check_finite=False
        )
        for _ in range(2)
    ]
    for f in ([1.2, 1.4], bad, [1.3, 1.1]):
        if f is not bad:
            for one in steps:
                one.dual_step(torch.tensor(f))
            continue
        with pytest.raises(ValueError, match=r"must be finite, got .*"):
            steps[1].dual_step(torch.tensor(f))
    # The bad step left nothing behind, neither in λ nor in the optimiser.
    assert torch.equal(steps[0].multiplier_values, steps[1].multiplier_values)
    assert float(steps[0].multiplier_values.min()) > 0


def test_finite_losses_are_checked_only_where_asked():
    unchecked = LayerwiseDescent(2, 0.1, 1.0, check_finite=False)
    assert unchecked.lagrangian(torch.tensor([math.nan, 0.5])).isnan()


@pytest.mark.parametrize("shape", [(2,), (4,), (), (3, 1), (1, 3)])
def test_losses_of_another_shape_are_refused(shape):
    descent = LayerwiseDescent(3, 0.1, 1.0)
    for method in (descent.lagrangian, descent.dual_step, descent.violations):
        with pytest.raises(ValueError, match=r"a vector of 3 losses.*got a tensor of shape \("):
            method(torch.ones(shape))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("auto", "reference='auto': only a recipe can use 'auto'.*pass f_0 as a number"),
        (0.0, "above 0, got 0"),
        (-1.0, "above 0, got -1"),
        (math.nan, "got nan"),
        (math.inf, "got inf"),
    ],
)
def test_a_reference_that_is_no_positive_number_is_refused(reference, message):
    with pytest.raises(ValueError, match=message):
        LayerwiseDescent(3, 0.1, reference)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "logs"}, "form must be one of linear, log, ladder, got 'logs'"),
        (
            {"resilience": "slacks", "beta": 1.0},
            "resilience must be one of none, slack, decay, got 'slacks'",
        ),
        ({"resilience": "slack", "beta": 0.0}, "beta must be above 0, got 0"),
        ({"gradient": "half"}, "gradient must be one of full, proxy, got 'half'"),
        ({"decay": "none"}, "decay must be one of coupled, decoupled, got 'none'"),
        (
            {"resilience": "slack", "beta": 1.0, "decay": "decoupled"},
            "no effect with resilience='slack'",
        ),
        (
            {"resilience": "decay", "beta": 0.001, "decay": "decoupled"},
            "learning rate is 0.01 and beta is 0.001",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LayerwiseDescent(3, 0.1, 1.0, **settings)


# ---------------------------------------------------------------- mixed precision


@pytest.mark.parametrize(
    "settings", [{}, {"form": "log"}, {"gradient": "proxy"}, {"resilience": "decay", "beta": 1.0}]
)
def test_automatic_mixed_precision_rounds_neither_the_gradient_nor_the_multipliers(settings):
    found = []
    for is_on in (False, True):
        descent = LayerwiseDescent(
            3, 0.1, 1.0, dual=Dual(optimizer="sgd", learning_rate=0.1), **settings
        )
        descent._multiplier.weight.data.copy_(torch.tensor([0.11, 0.23, 0.37]))
        f = torch.tensor([0.951, 0.913, 0.897], requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            value = descent.lagrangian(f)
            descent.dual_step(f)
            gradient = make_objective("constrained", descent).gradient(f)
        value.backward()
        numbers = (value, f.grad, descent.multiplier_values, gradient)
        found.append([one.tolist() for one in numbers if one is not None])
    assert found[0] == found[1]
