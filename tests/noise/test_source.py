from __future__ import annotations

import math

import pytest
import torch

from cudt.models.assemble import assemble
from cudt.models.base import LayeredModel
from cudt.models.layer_losses import measure_sigma
from cudt.noise.base import signal_noise
from cudt.noise.source import SignalShape, example_generator, standard_noise
from tests.conftest import tiny_recipe


@pytest.fixture(scope="module")
def problem():
    return assemble(tiny_recipe(), None, torch.device("cpu"))


def drawn(problem, examples, seed=0, kind="gaussian", pad_to=0):
    batch = problem.task.collate(examples)
    if pad_to:
        grow = pad_to - batch["input_ids"].shape[1]
        for name in ("input_ids", "attention_mask"):
            batch[name] = torch.nn.functional.pad(batch[name], [0, grow])
    shape = problem.layerwise.model.signal_shape(batch)
    return standard_noise(kind, seed, batch["ids"], shape), batch["attention_mask"].bool()


def test_an_examples_noise_does_not_depend_on_batch_order_or_padding(problem):
    examples = problem.task.examples("test")[:6]
    together, mask = drawn(problem, examples)
    backwards, _ = drawn(problem, examples[::-1])
    wide, _ = drawn(problem, examples, pad_to=mask.shape[1] + 3)
    for row, example in enumerate(examples):
        length = len(example.words)
        alone, _ = drawn(problem, [example])
        assert torch.equal(together[row, :length], alone[0])
        assert torch.equal(together[row, :length], backwards[len(examples) - 1 - row, :length])
        assert torch.equal(together[row, :length], wide[row, :length])
        assert not together[row, length:].any()


def test_another_seed_or_example_is_another_draw(problem):
    one, two = problem.task.examples("test")[:2]
    first, _ = drawn(problem, [one])
    assert torch.equal(first, drawn(problem, [one])[0])
    assert not torch.allclose(first, drawn(problem, [one], seed=1)[0])
    shorter = min(len(one.words), len(two.words))
    assert not torch.allclose(first[:, :shorter], drawn(problem, [two])[0][:, :shorter])


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_both_kinds_have_mean_zero_and_variance_one_within_one_percent(kind):
    noise = signal_noise(kind).standard((1000, 1000), torch.Generator().manual_seed(0))
    assert abs(noise.mean().item()) < 0.005
    assert noise.var().item() == pytest.approx(1, rel=0.01)
    if kind == "uniform":
        assert noise.abs().max().item() <= math.sqrt(3)


def test_sigma_is_the_standard_deviation_over_real_positions(problem):
    model, task = problem.layerwise.model, problem.task
    examples = task.examples("train")
    batches = [task.collate(examples[start : start + 7]) for start in range(0, len(examples), 7)]
    everything = torch.cat(
        [model.signal(batch)[0][batch["attention_mask"].bool()] for batch in batches]
    )
    expected = everything.double().std(correction=0).item()
    assert measure_sigma(model, batches) == pytest.approx(expected, rel=1e-9)


def literal_noise(
    kind: str, seed: int, ids: list[str], lengths: list[int], positions: int
) -> torch.Tensor:
    """The definition, one example after the other, padded at the end."""
    rows = []
    for name, length in zip(ids, lengths, strict=True):
        drawn = signal_noise(kind).standard((length, 5), example_generator(seed, name))
        rows.append(torch.cat([drawn, torch.zeros(positions - length, 5)]))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_noise_is_that_of_its_definition(kind):
    ids, shape = ["a", "b", "c"], SignalShape([4, 1, 6], 7, (5,))
    expected = literal_noise(kind, 3, ids, [4, 1, 6], 7)
    assert torch.equal(standard_noise(kind, 3, ids, shape), expected)


def test_the_shape_of_a_signal_is_known_without_computing_it(problem):
    model = problem.layerwise.model
    batch = problem.task.collate(problem.task.examples("test")[:6])
    assert model.signal_shape(batch) == LayeredModel.signal_shape(model, batch)
