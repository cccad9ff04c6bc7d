"""The objectives: what they weigh in an update, and which epoch they call the best."""

from __future__ import annotations

import pytest
import torch

from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives import Objective, make_objective

F = torch.tensor([0.9, 0.7, 0.8])
NAMES = ["erm", "supervised", "constrained"]


def objective(name, form="linear", multipliers=(0.5, 1.0, 2.0)) -> Objective:
    descent = LayerwiseDescent(3, 0.1, 1.0, form=form)
    descent.multiplier_values.copy_(torch.tensor(multipliers))
    return make_objective(name, descent)


# ---------------------------------------------------------------- an update


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
    assert objective(name).gradient(F).tolist() == pytest.approx(linear, abs=1e-6)
    of_logs = objective(name, "log").gradient(F) * F
    assert of_logs.tolist() == pytest.approx(log, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_linear_gradient_is_the_same_at_every_f(name):
    one = objective(name)
    assert torch.equal(one.gradient(F), one.gradient(F * 3))
    assert not one.gradient_needs_losses
    assert objective(name, "log").gradient_needs_losses


def test_erm_reads_the_last_layer_only():
    assert [objective(name).layers for name in NAMES] == [[3], [1, 2, 3], [1, 2, 3]]
    assert objective("erm").select(F).tolist() == F[2:].tolist()


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


def test_the_gradient_of_the_slack_is_beta_u_minus_lambda():
    descent = LayerwiseDescent(3, 0.1, 1.0, resilience="slack", beta=2.0)
    descent.multiplier_values.copy_(torch.tensor([0.5, 0.0, 1.0]))
    slack = next(descent.parameters())
    slack.data.copy_(torch.tensor([0.1, 0.2, 0.0]))
    make_objective("constrained", descent).accumulate_slack_gradient(F)
    assert slack.grad is not None
    assert slack.grad.tolist() == pytest.approx([2 * 0.1 - 0.5, 2 * 0.2, -1.0])
