from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from cudt.data.batching import Batch
from cudt.data.loading import batches
from cudt.method.measurement import Measurement
from cudt.models.layer_losses import draw_noise, measure, measure_sigma
from cudt.models.patches import frames_shape
from cudt.noise import NoiseSource, SignalShape
from cudt.training.train import assemble
from cudt.utils.errors import DataWarning, UserError
from tests.conftest import tiny_recipe

CPU = torch.device("cpu")
NOISE = NoiseSource("gaussian", 1.0, 0)


@pytest.fixture(scope="module")
def problem():
    assembled = assemble(tiny_recipe(), None, CPU)
    assembled.layerwise.eval()
    return assembled


def measured(problem, size, gammas=(0.0, 0.7), split="test"):
    task = problem.task
    return measure(problem.layerwise, batches(task, task.examples(split), size, CPU), NOISE, gammas)


def answers(problem, batch, precision):
    model = problem.layerwise.model
    return [
        model.readout(state, batch).to(precision)
        for state in model.layer_states(model.signal(batch)[0], batch)
    ]


def test_losses_are_the_tasks_losses_of_the_readout_at_each_layer(problem):
    batch = problem.task.collate(problem.task.examples("test")[:5])
    expected = [
        problem.task.losses(answer, batch) for answer in answers(problem, batch, torch.float32)
    ]
    losses = problem.layerwise(batch)
    assert losses.dtype == torch.float32
    assert torch.equal(losses, torch.stack(expected))


def test_judging_is_in_doubles_and_gives_the_scores_too(problem):
    batch = problem.task.collate(problem.task.examples("test")[:5])
    exact, task = answers(problem, batch, torch.float64), problem.task
    losses, scores = problem.layerwise.judge(batch)
    assert losses.dtype == torch.float64
    assert not losses.requires_grad
    assert torch.equal(losses, torch.stack([task.losses(answer, batch) for answer in exact]))
    assert torch.equal(scores, torch.stack([task.scores(answer, batch) for answer in exact]))


@pytest.mark.parametrize("layers", [[3], [1, 3], [2]])
def test_some_layers_give_their_rows(problem, layers):
    batch = problem.task.collate(problem.task.examples("test")[:5])
    rows = [layer - 1 for layer in layers]
    assert torch.equal(problem.layerwise(batch, layers=layers), problem.layerwise(batch)[rows])


def test_constant_layers_have_the_same_losses_and_no_gradient(problem):
    batch = problem.task.collate(problem.task.examples("test")[:5])
    plain = problem.layerwise(batch)
    losses = problem.layerwise(batch, constant={1, 2})
    assert torch.equal(losses, plain)
    weights = [weight for weight in problem.layerwise.parameters() if weight.requires_grad]
    for layer, moves in enumerate((False, False, True)):
        gradients = torch.autograd.grad(
            losses[layer].sum(), weights, retain_graph=True, allow_unused=True
        )
        assert any(gradient is not None and gradient.any() for gradient in gradients) == moves


def test_learned_weights_come_back_and_those_of_another_model_are_refused(problem):
    layerwise = problem.layerwise
    weights = {name: value.clone() for name, value in layerwise.learned_weights().items()}
    assert set(weights) == set(layerwise.state_dict())
    layerwise.load_learned_weights(weights)
    name = next(iter(weights))
    with pytest.raises(UserError, match="does not fit this model: unexpected key 'strange'"):
        layerwise.load_learned_weights({**weights, "strange": weights[name]})
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        layerwise.load_learned_weights(
            {key: value for key, value in weights.items() if key != name}
        )


def test_measurements_do_not_depend_on_the_batch_size(problem):
    for one, other in zip(measured(problem, 1), measured(problem, 17), strict=True):
        assert torch.allclose(one.losses, other.losses, atol=1e-5)
        assert torch.allclose(one.layer_losses, other.layer_losses, atol=1e-6)


def test_level_zero_is_no_noise_and_levels_scale_one_draw(problem):
    batch = problem.task.collate(problem.task.examples("test")[:5])
    clean, _ = problem.layerwise.judge(batch)
    zero, both = measured(problem, 5)
    assert torch.equal(zero.losses[:, :5], clean)
    drawn = draw_noise(problem.layerwise.model, batch, NOISE)
    noisy, _ = problem.layerwise.judge(batch, 0.7 * drawn)
    assert torch.allclose(both.losses[:, :5], noisy, atol=1e-6)
    assert not torch.allclose(zero.losses, both.losses)


def test_a_level_is_the_same_alone_and_in_a_grid(problem):
    assert torch.equal(measured(problem, 8, [0.7])[0].losses, measured(problem, 8)[1].losses)


def test_means_are_weighted():
    part = Measurement(
        torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([3.0, 1.0]), ["x", "y"]
    )
    assert part.layer_losses.tolist() == [1.25]
    assert part.layer_scores.tolist() == [0.25]
    assert Measurement.joined([part, part]).layer_losses.tolist() == [1.25]
    assert Measurement.joined([part, part]).ids == ["x", "y", "x", "y"]


class Frames:
    """The signal of a video model: the frames themselves."""

    weights_outside_passes = nullcontext

    def signal(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return batch["frames"], torch.ones(batch["frames"].shape[:2], dtype=torch.bool)

    def signal_shape(self, batch: Batch) -> SignalShape:
        return frames_shape(batch)


@pytest.mark.parametrize("grey", [0.0, 0.1, 37.3, 255.0])
def test_a_constant_signal_has_sigma_0_with_a_warning(grey):
    model: Any = Frames()
    with pytest.warns(
        DataWarning,
        match=r"σ_x = 0: the clean signal .* is constant, so only γ = 0 and discrete noise",
    ):
        assert measure_sigma(model, [{"frames": torch.full((3, 4, 50, 50), grey)}] * 3) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_signal_that_is_not_finite_is_refused(value):
    model: Any = Frames()
    frames = torch.rand(3, 4, 5, 5)
    frames[1, 2, 3, 4] = value
    with pytest.raises(
        UserError, match=r"σ_x is not finite: .* check the data and the pretrained weights"
    ):
        measure_sigma(model, [{"frames": frames}])


def test_a_signal_that_hardly_varies_is_no_warning(recwarn):
    model: Any = Frames()
    frames = torch.full((3, 4, 5, 5), 255.0)
    frames[0, 0, 0, 0] = 254.0
    assert measure_sigma(model, [{"frames": frames}]) > 0.05
    assert not [one for one in recwarn if issubclass(one.category, DataWarning)]
