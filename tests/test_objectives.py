from __future__ import annotations

import pytest
import torch

from cudt.descent import LayerwiseDescent
from cudt.objectives import Objective

F = torch.tensor([0.9, 0.7, 0.8])


def objective(name, form="linear", multipliers=(0.5, 1.0, 2.0)) -> Objective:
    descent = LayerwiseDescent(3, 0.1, 1.0, form=form)
    descent._multiplier.weight.data.copy_(torch.tensor(multipliers))
    return Objective(name, descent)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("erm", [0, 0, 1]),
        ("supervised", [1 / 3] * 3),
        # ∂/∂f_l (f_3 + Σ λ_l (f_l − 0.9 f_{l−1})) = λ_l − 0.9 λ_{l+1}, and 1 more for the last
        ("constrained", [0.5 - 0.9, 1.0 - 1.8, 1 + 2.0]),
    ],
)
def test_weight_of_each_layer_in_the_primal_step(name, expected):
    assert objective(name).gradient(F).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["erm", "supervised", "constrained"])
def test_log_form_divides_each_weight_by_its_loss(name):
    multipliers = torch.tensor([0.5, 1.0, 2.0])
    of_logs = {
        "erm": torch.tensor([0.0, 0.0, 1.0]),
        "supervised": torch.full((3,), 1 / 3),
        "constrained": multipliers - torch.tensor([1.0, 2.0, 0.0]) + torch.tensor([0.0, 0.0, 1.0]),
    }[name]
    assert torch.allclose(objective(name, "log").gradient(F), of_logs / F)


@pytest.mark.parametrize("name", ["erm", "supervised", "constrained"])
def test_linear_gradient_is_the_same_at_every_f(name):
    one = objective(name)
    assert torch.equal(one.gradient(F), one.gradient(F * 3))
    assert not one.gradient_needs_losses
    assert objective(name, "log").gradient_needs_losses


def test_warm_up_minimises_the_last_loss_and_leaves_the_multipliers_alone():
    one = objective("constrained")
    one.warming_up = True
    before = one.descent.multiplier_values.clone()
    one.dual_step(F * 5)
    assert one.gradient(F).tolist() == [0, 0, 1]
    assert torch.equal(one.descent.multiplier_values, before)
    one.warming_up = False
    one.dual_step(F * 5)
    assert not torch.equal(one.descent.multiplier_values, before)


@pytest.mark.parametrize("name", ["erm", "supervised"])
def test_other_objectives_never_move_the_multipliers(name):
    one = objective(name, multipliers=(0.0, 0.0, 0.0))
    one.dual_step(F * 5)
    assert one.descent.multiplier_values.tolist() == [0, 0, 0]


def test_slack_gradient_is_beta_u_minus_lambda():
    descent = LayerwiseDescent(3, 0.1, 1.0, resilience="slack", beta=2.0)
    descent._multiplier.weight.data.copy_(torch.tensor([0.5, 0.0, 1.0]))
    slack = next(descent.slack_parameters())
    slack.data.copy_(torch.tensor([0.1, 0.2, 0.0]))
    Objective("constrained", descent).accumulate_slack_gradient(F)
    assert slack.grad is not None
    assert slack.grad.tolist() == pytest.approx([2 * 0.1 - 0.5, 2 * 0.2, -1.0])
