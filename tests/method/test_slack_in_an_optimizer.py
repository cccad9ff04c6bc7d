"""`add_slack_to`: u as a part of a primal optimiser, step by step against equations written out by
hand."""

from __future__ import annotations

import pytest
import torch

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent

F = torch.tensor([1.2, 0.7])


def problem(**settings) -> LayerwiseDescent:
    """f_1 ≤ 0.9·f_0 and f_2 ≤ 0.9·f_1 with f_0 = 1, whose λ ascends by plain gradient steps."""
    return LayerwiseDescent(2, 0.1, 1.0, dual=Dual(optimizer="sgd", learning_rate=0.5), **settings)


def test_u_descends_with_the_weights_and_stays_above_zero():
    descent, weight = problem(resilience="slack", beta=2.0), torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    descent.add_slack_to(optimizer)
    u, multipliers = torch.zeros(2), torch.zeros(2)
    for _ in range(30):
        optimizer.zero_grad()
        f = F * weight
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


def test_u_is_projected_after_every_step_of_the_optimizer():
    descent = problem(resilience="slack", beta=1.0)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    descent.add_slack_to(optimizer)
    (slack,) = descent.slack_parameters()
    slack.grad = torch.tensor([3.0, -2.0])
    optimizer.step()
    assert slack.tolist() == [0.0, 2.0]


def test_u_does_not_decay_with_the_weights():
    descent, weight = problem(resilience="slack", beta=1.0), torch.ones(1, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    descent.add_slack_to(optimizer)
    (slack,) = descent.slack_parameters()
    slack.data.fill_(0.4)
    weight.grad, slack.grad = torch.zeros(1), torch.zeros(2)
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.1 * 0.5)
    assert slack.tolist() == pytest.approx([0.4, 0.4])


@pytest.mark.parametrize("resilience", [{}, {"resilience": "decay", "beta": 1.0}])
def test_without_trained_slack_the_optimizer_stays_as_it_is(resilience):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    problem(**resilience).add_slack_to(optimizer)
    assert len(optimizer.param_groups) == 1
