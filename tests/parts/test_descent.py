"""The method's parts: LayerwiseDescent as a module, the weights of each objective, constraints and verdicts."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch

from cudt.config.schema import Descent, Dual
from cudt.method.constraints import (
    LayerVerdict,
    descent_violations,
    is_feasible,
    is_monotone,
    judge,
    rate_for_target,
)
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


def test_the_log_form_survives_underflow():
    underflown = descent_violations(torch.tensor([0.5, 0.0, 0.0]), 0.7, [0.1] * 3, "log")
    assert bool(torch.isfinite(underflown).all())


def test_the_rate_for_a_target_ends_at_the_target():
    assert 0.69 * (1 - rate_for_target(0.05, 0.69, 6)) ** 6 == pytest.approx(0.05)
    for target in (0.69, 1.0, 0.0, -1.0):
        with pytest.raises(ValueError, match="between 0 and the reference"):
            rate_for_target(target, 0.69, 6)


def random_examples() -> tuple[torch.Tensor, torch.Tensor]:
    losses = torch.rand(3, 400, generator=torch.Generator().manual_seed(0)).double() + 0.2
    return losses, torch.ones(400).double()


def test_violation_and_its_standard_error_are_those_of_the_paired_differences():
    losses, weights = random_examples()
    verdicts = judge(losses, weights, 0.8, [0.1, 0.2, 0.3], torch.zeros(3))
    differences = losses[1] - 0.8 * losses[0]
    assert verdicts[1].violation == pytest.approx(differences.mean().item())
    assert verdicts[1].standard_error == pytest.approx((differences.std() / 400**0.5).item())
    assert verdicts[1].allowed == pytest.approx(0.8 * losses[0].mean().item())
    assert verdicts[0].allowed == pytest.approx(0.9 * 0.8)
    ladder = judge(losses, weights, 0.8, [0.1, 0.2, 0.3], torch.zeros(3), "ladder")[2]
    assert ladder.allowed == pytest.approx(0.8 * 0.9 * 0.8 * 0.7)
    assert ladder.violation == pytest.approx(losses[2].mean().item() - ladder.allowed)
    assert ladder.standard_error == pytest.approx((losses[2].std() / 400**0.5).item())


def test_weights_count_examples_more_than_once():
    losses, weights = torch.tensor([[0.5, 0.7], [0.3, 0.9]]), torch.tensor([3.0, 1.0])
    weighted = judge(losses, weights, 1.0, [0.1, 0.1], torch.zeros(2))
    repeated = judge(losses[:, [0, 0, 0, 1]], torch.ones(4), 1.0, [0.1, 0.1], torch.zeros(2))
    assert [v.violation for v in weighted] == pytest.approx([v.violation for v in repeated])


@pytest.mark.parametrize(
    ("violation", "slack", "expected"),
    [
        (-0.1, 0.0, "met"),
        (0.0, 0.0, "met"),
        (0.015, 0.0, "borderline"),
        (0.03, 0.02, "relaxed"),
        (0.03, 0.0, "violated"),
    ],
)
def test_the_four_verdicts(violation, slack, expected):
    assert LayerVerdict(1, 0.5, 0.5 - violation, violation, 0.01, slack).verdict == expected


def test_feasible_is_what_the_data_cannot_refute_and_monotone_starts_at_the_reference():
    met, borderline, relaxed = (LayerVerdict(1, 0.5, 0.5, g, 0.01, 1.0) for g in (-0.1, 0.01, 0.5))
    assert is_feasible([met, borderline])
    assert not is_feasible([met, relaxed])
    assert is_monotone(0.7, [0.6, 0.5, 0.4])
    for losses in ([0.6, 0.6, 0.4], [0.8, 0.5, 0.4], [0.6, 0.4, 0.5]):
        assert not is_monotone(0.7, losses)
