"""LayerwiseDescent as a module: checkpoints, precision, what it refuses, and the weights of each objective."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch

from cudt.config.schema import Descent, Dual
from cudt.method.descent import LayerwiseDescent, descent_of
from cudt.method.objectives import make_objective
from cudt.utils.errors import UserError

RESILIENCES: list[dict[str, Any]] = [
    {},
    {"resilience": "slack", "beta": 2.0},
    {"resilience": "decay", "beta": 2.0},
    {"resilience": "decay", "beta": 2.0, "decay": "decoupled"},
]


def trained(**settings: Any) -> LayerwiseDescent:
    """A problem of three layers whose multipliers, slack and dual optimiser are not at their start."""
    descent = LayerwiseDescent(3, 0.1, 1.0, **settings)
    for slack in descent.parameters():
        slack.data.copy_(torch.tensor([0.1, 0.0, 0.2]))
    for f in ([1.2, 1.3, 1.1], [0.9, 1.3, 1.0]):
        descent.dual_step(torch.tensor(f))
    return descent


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "nupi"])
def test_20_steps_equal_10_and_reload_and_10(optimizer):
    losses = torch.rand(20, 3, generator=torch.Generator().manual_seed(1)) + 0.5
    for resilience in RESILIENCES:
        settings = {"dual": Dual(optimizer=optimizer, learning_rate=0.1), **resilience}
        whole, first = trained(**settings), trained(**settings)
        for number, f in enumerate(losses):
            if number == 10:
                file = io.BytesIO()
                torch.save({"descent": first.state_dict()}, file)
                file.seek(0)
                first = LayerwiseDescent(3, 0.1, 1.0, **settings)
                first.load_state_dict(torch.load(file, weights_only=True)["descent"])
            whole.dual_step(f)
            first.dual_step(f)
        assert torch.equal(whole.multiplier_values, first.multiplier_values)
        assert torch.equal(whole.slack, first.slack)
        assert whole.multiplier_values.max() > 0


@pytest.mark.parametrize("settings", [{"form": "log"}, {"gradient": "proxy"}, *RESILIENCES])
def test_automatic_mixed_precision_rounds_neither_the_gradient_nor_the_multipliers(settings):
    found = []
    for is_on in (False, True):
        descent = LayerwiseDescent(3, 0.1, 1.0, **settings)
        descent.multiplier_values.copy_(torch.tensor([0.11, 0.23, 0.37]))
        f = torch.tensor([0.951, 0.913, 0.897], requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            value = descent.lagrangian(f)
            descent.dual_step(f)
            gradient = make_objective("constrained", descent).gradient(f)
        value.backward()
        numbers = (value, f.grad, descent.multiplier_values, gradient)
        found.append([one.tolist() for one in numbers if one is not None])
    assert found[0] == found[1]


def test_slack_of_the_log_form_in_units_of_the_loss_is_what_the_relaxed_constraint_allows_more():
    descent = LayerwiseDescent(2, 0.2, 1.0, form="log", resilience="slack", beta=1.0)
    next(descent.parameters()).data.copy_(torch.tensor([0.1, 0.3]))
    more = descent.slack_in_loss_units(torch.tensor([0.9, 0.7]))
    expected = [0.8 * math.exp(0.1) - 0.8, 0.72 * math.exp(0.3) - 0.72]
    assert more.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "nupi"])
@pytest.mark.parametrize("decay", ["coupled", "decoupled"])
def test_a_step_on_losses_that_are_not_finite_is_refused_and_changes_nothing(decay, optimizer):
    dual = Dual(optimizer=optimizer, learning_rate=0.1)
    settings: dict[str, Any] = {"resilience": "decay", "beta": 2.0, "decay": decay, "dual": dual}
    one, other = (LayerwiseDescent(2, 0.1, 1.0, **settings) for _ in range(2))
    for descent in (one, other):
        descent.dual_step(torch.tensor([1.2, 1.4]))
    for bad in ([math.nan, 0.5], [0.9, math.inf], [3e38, -3e38]):
        with pytest.raises(ValueError, match="must have finite violations, got f ="):
            other.dual_step(torch.tensor(bad))
    for descent in (one, other):
        descent.dual_step(torch.tensor([1.3, 1.1]))
    # The bad steps left nothing behind, neither in λ nor in the optimiser.
    assert torch.equal(one.multiplier_values, other.multiplier_values)
    assert float(one.multiplier_values.min()) > 0


def test_losses_of_another_shape_are_refused():
    descent = LayerwiseDescent(3, 0.1, 1.0)
    for method in (descent.lagrangian, descent.dual_step, descent.violations):
        with pytest.raises(ValueError, match=r"a vector of 3 losses.*got a tensor of shape \("):
            method(torch.ones(1, 3))


def test_a_section_of_a_recipe_gives_the_same_problem():
    settings = Descent(alpha=[0.1, 0.2], form="log", resilience="decay", beta=2.0)
    found = descent_of(settings, 2, 0.7)
    assert (found.rates, found.reference, found.form) == ([0.1, 0.2], 0.7, "log")
    assert (found.resilience, found.beta) == ("decay", 2.0)
    target = descent_of(Descent.model_validate({"alpha": {"target_loss": 0.1}}), 3, 0.8)
    assert 0.8 * (1 - target.rates[0]) ** 3 == pytest.approx(0.1)
    with pytest.raises(UserError, match=r"descent.reference: f_0 must be above 0"):
        descent_of(settings, 2, 0.0)


@pytest.mark.parametrize(
    ("name", "linear", "log"),
    [
        ("erm", [0, 0, 1], [0, 0, 1]),
        ("supervised", [1 / 3] * 3, [1 / 3] * 3),
        # ∂/∂f_l (f_3 + Σ λ_l (f_l − 0.9 f_{l−1})) = λ_l − 0.9 λ_{l+1}, and 1 more for the last; per
        # unit of log f without 0.9.
        ("constrained", [0.5 - 0.9, 1.0 - 1.8, 1 + 2.0], [0.5 - 1.0, 1.0 - 2.0, 1 + 2.0]),
    ],
)
def test_weight_of_each_layer_in_the_primal_step(name, linear, log):
    f, found = torch.tensor([0.9, 0.7, 0.8]), []
    for form in ("linear", "log"):
        descent = LayerwiseDescent(3, 0.1, 1.0, form=form)
        descent.multiplier_values.copy_(torch.tensor([0.5, 1.0, 2.0]))
        found.append(make_objective(name, descent).gradient(f))
    assert found[0].tolist() == pytest.approx(linear, abs=1e-6)
    assert (found[1] * f).tolist() == pytest.approx(log, abs=1e-6)
