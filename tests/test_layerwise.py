from __future__ import annotations

import pytest
import torch

from cudt.batching import batches
from cudt.experiment import assemble
from cudt.layerwise import Measurement, NoiseSource, measure
from tests.conftest import tiny_recipe

CPU = torch.device("cpu")
NOISE = NoiseSource("gaussian", 1.0, 0)


@pytest.fixture(scope="module")
def experiment():
    assembled = assemble(tiny_recipe(), None, CPU)
    assembled.layerwise.eval()
    return assembled


def measured(experiment, size, gammas=(0.0, 0.7), split="test"):
    task = experiment.task
    return measure(experiment.layerwise, batches(task, task.examples(split), size, CPU), NOISE, gammas)


@pytest.mark.parametrize(("training", "precision"), [(True, torch.float32), (False, torch.float64)])
def test_losses_are_the_tasks_losses_of_the_readout_at_each_layer(experiment, training, precision):
    batch = experiment.task.collate(experiment.task.examples("test")[:5])
    model = experiment.layerwise.model
    experiment.layerwise.train(training)
    losses, scores = experiment.layerwise(batch)
    experiment.layerwise.eval()
    answers = [model.readout(state, batch).to(precision) for state in model.layer_states(model.signal(batch)[0], batch)]
    assert losses.dtype == precision
    assert torch.equal(losses, torch.stack([experiment.task.losses(answer, batch) for answer in answers]))
    assert torch.equal(scores, torch.stack([experiment.task.scores(answer, batch) for answer in answers]))


def test_last_only_gives_the_last_row(experiment):
    batch = experiment.task.collate(experiment.task.examples("test")[:5])
    assert torch.equal(experiment.layerwise(batch, last_only=True)[0], experiment.layerwise(batch)[0][-1:])


def test_measurements_do_not_depend_on_the_batch_size(experiment):
    for one, other in zip(measured(experiment, 1), measured(experiment, 17), strict=True):
        assert torch.allclose(one.losses, other.losses, atol=1e-5)
        assert torch.allclose(one.layer_losses, other.layer_losses, atol=1e-6)


def test_level_zero_is_no_noise_and_levels_scale_one_draw(experiment):
    batch = experiment.task.collate(experiment.task.examples("test")[:5])
    clean, _ = experiment.layerwise(batch)
    zero, both = measured(experiment, 5)
    assert torch.equal(zero.losses[:, :5], clean)
    drawn = NOISE.draw(experiment.layerwise.model, batch)
    noisy, _ = experiment.layerwise(batch, 0.7 * drawn)
    assert torch.allclose(both.losses[:, :5], noisy, atol=1e-6)
    assert not torch.allclose(zero.losses, both.losses)


def test_a_level_is_the_same_alone_and_in_a_grid(experiment):
    assert torch.equal(measured(experiment, 8, [0.7])[0].losses, measured(experiment, 8)[1].losses)


def test_means_are_weighted():
    part = Measurement(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([3.0, 1.0]))
    assert part.layer_losses.tolist() == [1.25]
    assert part.layer_scores.tolist() == [0.25]
    assert Measurement.joined([part, part]).layer_losses.tolist() == [1.25]
