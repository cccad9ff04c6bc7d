"""Lagrangian and dual step of some constraints at a time."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent


@pytest.mark.parametrize(("resilience", "beta"), [("none", None), ("slack", 2.0), ("decay", 2.0)])
@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_lagrangian_of_sampled_constraints_is_right_on_average(form, resilience, beta, size):
    descent = LayerwiseDescent(4, [0.1, 0.2, 0.0, 0.3], 1.0, form=form, resilience=resilience, beta=beta)
    descent._multiplier.weight.data.copy_(torch.tensor([0.5, 1.0, 0.0, 2.0]))
    for slack in descent.slack_parameters():
        slack.data.copy_(torch.tensor([0.1, 0.0, 0.2, 0.3]))
    f = torch.tensor([0.9, 0.7, 0.8, 0.5])
    drawn = [descent.lagrangian(f, sampled).item() for sampled in itertools.combinations(range(1, 5), size)]
    assert sum(drawn) / len(drawn) == pytest.approx(descent.lagrangian(f).item(), abs=1e-6)
    assert max(drawn) - min(drawn) > 0.02


def test_all_constraints_sampled_are_all_constraints():
    one, other = (LayerwiseDescent(3, 0.1, 1.0) for _ in range(2))
    f = torch.tensor([0.95, 0.9, 0.85])
    for _ in range(3):
        one.dual_step(f, [1, 2, 3])
        other.dual_step(f)
    assert torch.equal(one.multiplier_values, other.multiplier_values)
    assert one.lagrangian(f, [1, 2, 3]).item() == pytest.approx(other.lagrangian(f).item(), abs=1e-6)


def test_a_sampled_constraint_counts_for_all_and_the_others_for_nothing():
    descent = LayerwiseDescent(3, 0.1, 1.0, dual=Dual(optimizer="sgd", learning_rate=1.0))
    descent.dual_step(torch.tensor([0.95, 0.9, 0.85]), [2])
    # Three times g_2 = 0.9 − 0.9·0.95.
    assert descent.multiplier_values.tolist() == pytest.approx([0, 3 * 0.045, 0], abs=1e-6)


@pytest.mark.parametrize("layer", [2, 3, 5])
def test_losses_that_a_sampled_constraint_depends_on_must_be_finite(layer):
    f = torch.tensor([math.nan, 0.9, 0.8, math.nan, 0.7])
    f[layer - 1] = math.nan
    with pytest.raises(ValueError, match=f"must be finite, got f_{layer} = nan;"):
        LayerwiseDescent(5, 0.1, 1.0).lagrangian(f, [3])


def test_a_constraint_of_the_ladder_needs_no_layer_but_its_own_and_the_last():
    assert LayerwiseDescent(5, 0.1, 1.0).layers_of([3]) == [2, 3, 5]
    descent = LayerwiseDescent(5, 0.1, 1.0, form="ladder")
    assert descent.layers_of([3]) == [3, 5]
    f = torch.tensor([math.nan, math.nan, 0.8, math.nan, 0.7])
    descent.dual_step(f, [3])
    assert torch.isfinite(descent.lagrangian(f, [3]))


@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
def test_losses_that_no_sampled_constraint_depends_on_are_ignored(form):
    f = torch.tensor([math.nan, 0.9, 0.8, math.nan, 0.7], requires_grad=True)
    descent = LayerwiseDescent(5, 0.1, 1.0, form=form, resilience="slack", beta=1.0)
    descent._multiplier.weight.data.fill_(0.5)
    value = descent.lagrangian(f, [3])
    assert torch.isfinite(value)
    slack = next(descent.slack_parameters())
    gradient, of_slack = torch.autograd.grad(value, [f, slack])
    assert torch.isfinite(gradient[[1, 2, 4]]).all()
    assert of_slack.tolist() == pytest.approx([0, 0, -2.5, 0, 0])
    descent.dual_step(f, [3])
    assert torch.isfinite(descent.multiplier_values).all()
