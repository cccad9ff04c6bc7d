"""f_1 … f_L of a batch and of a split, the choice of layers, learned weights, and σ_x."""

from __future__ import annotations

import math

import pytest
import torch

from cudt.data.loader import batches
from cudt.models.layer_losses import (
    Measurement,
    deviation,
    draw_noise,
    measure_batches,
    measure_sigma,
)
from cudt.noise import NoiseSource
from cudt.training.train import assemble_model
from cudt.utils.errors import UserError
from tests.conftest import tiny_recipe

CPU = torch.device("cpu")
NOISE = NoiseSource("gaussian", 1.0, 0)


@pytest.fixture(scope="module")
def problem():
    return assemble_model(tiny_recipe(), None, CPU).eval()


@pytest.fixture(scope="module")
def batch(problem):
    return problem.task.collate(problem.task.examples("test")[:5])


def measured(problem, size, gammas=(0.0, 0.7)):
    examples = [*batches(problem.task, problem.task.examples("test"), size, CPU)]
    return [
        Measurement.joined([*measure_batches(problem, examples, NOISE, gamma)]) for gamma in gammas
    ]


def test_losses_are_the_tasks_losses_of_the_readout_at_each_layer(problem, batch):
    model, task = problem.model, problem.task
    states = model.layer_states(model.signal(batch)[0], batch)
    answers = [model.readout(state, batch) for state in states]
    losses = problem(batch)
    assert torch.equal(losses, torch.stack([task.losses(one, batch) for one in answers]))
    judged, scores = problem.judge(batch)
    assert judged.dtype == torch.float64
    assert not judged.requires_grad
    exact = [one.double() for one in answers]
    assert torch.equal(judged, torch.stack([task.losses(one, batch) for one in exact]))
    assert torch.equal(scores, torch.stack([task.scores(one, batch) for one in exact]))


def test_some_layers_give_their_rows_and_constant_ones_have_no_gradient(problem, batch):
    assert torch.equal(problem(batch, layers=[1, 3]), problem(batch)[[0, 2]])
    losses = problem(batch, constant={1, 2})
    assert torch.equal(losses, problem(batch))
    weights = list(problem.parameters())
    for layer, moves in enumerate((False, False, True)):
        found = torch.autograd.grad(
            losses[layer].sum(), weights, retain_graph=True, allow_unused=True
        )
        assert any(one is not None and one.any() for one in found) == moves


def test_learned_weights_come_back_and_those_of_another_model_are_refused(problem):
    weights = {name: value.clone() for name, value in problem.learned_weights().items()}
    assert set(weights) == set(problem.state_dict())
    problem.load_learned_weights(weights)
    name = sorted(weights)[0]
    with pytest.raises(UserError, match="does not fit this model: unexpected key 'strange'"):
        problem.load_learned_weights({**weights, "strange": weights[name]})
    del weights[name]
    with pytest.raises(UserError, match=f"does not fit this model: missing key '{name}'"):
        problem.load_learned_weights(weights)


# ---------------------------------------------------------------- measuring


def test_a_measurement_depends_on_neither_batch_size_nor_other_levels(problem, batch):
    zero, noisy = measured(problem, 5)
    for one, other in zip(measured(problem, 17), (zero, noisy), strict=True):
        assert torch.allclose(one.layer_losses, other.layer_losses, atol=1e-6)
    assert torch.equal(zero.losses[:, :5], problem.judge(batch)[0])
    signal, mask = problem.model.signal(batch)
    drawn = draw_noise(batch, signal, mask, NOISE)
    expected, _ = problem.judge(batch, lambda *_: 0.7 * drawn)
    assert torch.allclose(noisy.losses[:, :5], expected, atol=1e-6)
    assert not torch.allclose(noisy.losses, zero.losses)


def test_noise_has_the_deviation_of_the_signal_and_is_none_on_padding(problem):
    model, task = problem.model, problem.task
    every = task.collate(task.examples("train"))
    signal, mask = model.signal(every)
    sigma = measure_sigma(model, batches(task, task.examples("train"), 7, CPU))
    assert sigma == pytest.approx(signal[mask].std(correction=0).item(), rel=1e-5)
    noise = draw_noise(every, signal, mask, NoiseSource("uniform", sigma, 0))
    assert noise[mask].std().item() == pytest.approx(sigma, rel=0.03)
    assert noise[~mask].abs().sum() == 0


@pytest.mark.parametrize("value", [0.0, 0.1, 255.0, math.nan])
def test_a_constant_signal_and_one_that_is_not_finite_have_no_noise(value):
    sigma = deviation([torch.full((3, 4, 50, 50), value)] * 3)
    assert sigma == 0 if math.isfinite(value) else math.isnan(sigma)
    with pytest.raises(UserError, match="is constant or not finite"):
        NoiseSource("gaussian", sigma, 0).draw(["0"], [1], (1, 1, 1))


def test_means_are_weighted_and_grouping_by_example_keeps_them():
    losses, scores = torch.rand(2, 3, 8, dtype=torch.double, generator=torch.Generator())
    weights = torch.arange(1.0, 9.0).double()
    parts = [
        Measurement(losses[:, own], scores[:, own], weights[own], list(ids))
        for own, ids in ((slice(4), "bacd"), (slice(4, 8), "dcab"))
    ]
    joined = Measurement.joined(parts)
    by_hand = (losses * weights).sum(1) / 36
    assert joined.layer_losses.tolist() == pytest.approx(by_hand.tolist())
    grouped = joined.grouped(joined.ids)
    assert grouped.ids == ["a", "b", "c", "d"]
    assert grouped.layer_losses.tolist() == pytest.approx(by_hand.tolist())
    assert grouped.layer_scores.tolist() == pytest.approx(joined.layer_scores.tolist())
    # b is the first of the first part and the last of the second, with weights 1 and 8.
    wanted = (losses[:, 0] + 8 * losses[:, 7]) / 9
    assert grouped.losses[:, 1].tolist() == pytest.approx(wanted.tolist())
