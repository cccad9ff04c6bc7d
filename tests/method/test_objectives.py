from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives.base import Objective, make_objective

F = torch.tensor([0.9, 0.7, 0.8])


def objective(name, form="linear", multipliers=(0.5, 1.0, 2.0)) -> Objective:
    descent = LayerwiseDescent(3, 0.1, 1.0, form=form)
    descent._multiplier.weight.data.copy_(torch.tensor(multipliers))
    return make_objective(name, descent)


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
    make_objective("constrained", descent).accumulate_slack_gradient(F)
    assert slack.grad is not None
    assert slack.grad.tolist() == pytest.approx([2 * 0.1 - 0.5, 2 * 0.2, -1.0])


# ---------------------------------------------------------------- some constraints at a time

LAYERS = 5
MULTIPLIERS = torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5])
SLACK = torch.tensor([0.1, 0.0, 0.3, 0.2, 0.4])
ALL_F = torch.tensor([0.9, 0.7, 0.8, 0.5, 0.6])
sizes = pytest.mark.parametrize("size", [1, 2, 4])
resiliences = pytest.mark.parametrize(("resilience", "beta"), [("none", None), ("slack", 2.0), ("decay", 2.0)])


def sampling(name, sampled=None, form="linear", resilience="none", beta=None) -> Objective:
    """An objective for five layers that looks at some of its constraints, or at all."""
    dual = Dual(optimizer="sgd", learning_rate=0.01)
    descent = LayerwiseDescent(LAYERS, 0.1, 1.0, form=form, resilience=resilience, beta=beta, dual=dual)
    descent._multiplier.weight.data.copy_(MULTIPLIERS)
    for slack in descent.slack_parameters():
        slack.data.copy_(SLACK)
    one = make_objective(name, descent, len(sampled) if sampled else None)
    one._sampled = list(sampled) if sampled else None
    return one


def subsets(size: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(1, LAYERS + 1), size))


def read(one: Objective) -> Tensor:
    """The losses of the layers that an update needs."""
    return ALL_F[[layer - 1 for layer in one.layers]]


def full_gradient(one: Objective) -> Tensor:
    """Each layer's weight in the primal step, zero for layers that were not read."""
    weights = torch.zeros(LAYERS)
    weights[[layer - 1 for layer in one.layers]] = one.gradient(read(one))
    return weights


@sizes
@pytest.mark.parametrize("form", ["linear", "log"])
@pytest.mark.parametrize("name", ["constrained", "supervised", "erm"])
def test_the_primal_gradient_is_right_on_average_over_all_samples(name, form, size):
    drawn = torch.stack([full_gradient(sampling(name, sampled, form)) for sampled in subsets(size)])
    assert torch.allclose(drawn.mean(0), full_gradient(sampling(name, form=form)), atol=1e-5)
    if name != "erm":
        assert drawn.std(0).max() > 0.1


@sizes
@resiliences
@pytest.mark.parametrize("form", ["linear", "log"])
def test_the_multipliers_step_is_right_on_average_over_all_samples(form, resilience, beta, size):
    def step(sampled: tuple[int, ...] | None) -> Tensor:
        one = sampling("constrained", sampled, form, resilience, beta)
        one.dual_step(read(one))
        return one.descent.multiplier_values - MULTIPLIERS

    drawn = torch.stack([step(sampled) for sampled in subsets(size)])
    assert torch.allclose(drawn.mean(0), step(None), atol=1e-6)


@sizes
def test_the_slacks_gradient_is_right_on_average_over_all_samples(size):
    gradients = []
    for sampled in subsets(size):
        one = sampling("constrained", sampled, resilience="slack", beta=2.0)
        one.accumulate_slack_gradient(read(one))
        gradients.append(next(one.descent.slack_parameters()).grad)
    assert torch.allclose(torch.stack(gradients).mean(0), 2.0 * SLACK - MULTIPLIERS, atol=1e-5)  # type: ignore[arg-type]


@resiliences
@pytest.mark.parametrize("form", ["linear", "log"])
def test_what_was_not_read_never_leaks(form, resilience, beta):
    for size in (1, 2, 3):
        for sampled in subsets(size):
            one = sampling("constrained", sampled, form, resilience, beta)
            assert torch.isfinite(one.value(read(one)))
            assert torch.isfinite(one.gradient(read(one))).all()
            one.accumulate_slack_gradient(read(one))
            assert all(torch.isfinite(slack.grad).all() for slack in one.descent.slack_parameters())  # type: ignore[arg-type]
            one.dual_step(read(one))
            assert torch.isfinite(one.descent.multiplier_values).all()
            expected = one.descent.violations(ALL_F)[[layer - 1 for layer in sampled]]
            assert torch.allclose(one.violations(read(one)), expected)


@pytest.mark.parametrize(
    ("sampled", "layers"),
    [([1], [1, 5]), ([2], [1, 2, 5]), ([5], [4, 5]), ([1, 4], [1, 3, 4, 5]), ([2, 3], [1, 2, 3, 5])],
)
def test_an_update_needs_its_constraints_layers_those_before_them_and_the_last(sampled, layers):
    assert sampling("constrained", sampled).layers == layers
    assert sampling("supervised", sampled).layers == sorted({*sampled, 5})
    assert sampling("erm", sampled).layers == [5]
    assert sampling("constrained", sampled).constraints == sampled


@pytest.mark.parametrize("name", ["constrained", "supervised"])
def test_all_constraints_need_all_layers(name):
    assert sampling(name).layers == sampling(name).constraints == [1, 2, 3, 4, 5]


def test_warm_up_minimises_the_last_loss_whatever_was_sampled():
    one = sampling("constrained", [2, 3])
    one.warming_up = True
    assert full_gradient(one).tolist() == [0, 0, 0, 0, 1]
    one.dual_step(read(one))
    assert torch.equal(one.descent.multiplier_values, MULTIPLIERS)


@sizes
def test_every_constraint_and_every_set_of_them_is_drawn_equally_often(size):
    one, generator = sampling("constrained"), np.random.default_rng(0)
    one._sample_size = size
    drawn = Counter[tuple[int, ...]]()
    for _ in range(4000):
        one.draw(generator)
        drawn[tuple(one.constraints)] += 1
    chance = 1 / len(subsets(size))
    assert set(drawn) == set(subsets(size))
    for count in drawn.values():
        assert abs(count - 4000 * chance) < 4 * (4000 * chance * (1 - chance)) ** 0.5


@pytest.mark.parametrize("size", [None, 5, 9])
def test_without_a_smaller_number_nothing_is_drawn(size):
    one = sampling("constrained")
    one._sample_size = size
    one.draw(np.random.default_rng(0))
    assert one.constraints == [1, 2, 3, 4, 5]
    assert torch.equal(one.gradient(ALL_F), sampling("constrained").gradient(ALL_F))


def test_a_draw_depends_on_the_generator_alone():
    one, other = (make_objective("constrained", sampling("constrained").descent, 2) for _ in range(2))
    drawn = []
    for seed in range(20):
        one.draw(np.random.default_rng(seed))
        other.draw(np.random.default_rng(seed))
        assert one.constraints == other.constraints
        drawn.append(tuple(one.constraints))
    assert len(set(drawn)) > 1
