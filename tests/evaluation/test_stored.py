from __future__ import annotations

import pytest
import torch

from cudt.evaluation import stored
from cudt.evaluation.stored import ExampleFile, MeasuredExamples, StoredMeasurement
from cudt.models.layer_losses import Measurement

LAYERS = 3


def drawn(names: list[str], seed: int, *, has_inputs: bool = False) -> Measurement:
    generator = torch.Generator().manual_seed(seed)
    losses, scores = (
        torch.rand(2, LAYERS, len(names), generator=generator, dtype=torch.double) + 0.1
    )
    weights = torch.randint(0, 4, (len(names),), generator=generator).double()
    inputs = torch.rand(len(names), generator=generator, dtype=torch.double) if has_inputs else None
    return Measurement(losses, scores, weights, names, inputs)


def cut(measured: Measurement, *sizes: int) -> list[Measurement]:
    """The same in batches."""
    batches, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        inputs = None if measured.input_scores is None else measured.input_scores[part]
        columns = (
            measured.losses[:, part],
            measured.scores[:, part],
            measured.weights[part],
            measured.ids[part],
        )
        batches.append(Measurement(*columns, inputs))
        start += size
    return batches


def stored_pair(
    file: ExampleFile, levels: list[Measurement], *sizes: int
) -> list[StoredMeasurement]:
    return file.add(zip(*(cut(level, *sizes) for level in levels), strict=True), len(levels[0].ids))


def read(measured: MeasuredExamples) -> Measurement:
    return Measurement.joined([*measured.blocks()])


def same(one: Measurement, other: Measurement) -> bool:
    pairs = [(one.losses, other.losses), (one.scores, other.scores), (one.weights, other.weights)]
    if one.input_scores is not None and other.input_scores is not None:
        pairs.append((one.input_scores, other.input_scores))
    both_or_none = (one.input_scores is None) == (other.input_scores is None)
    return both_or_none and one.ids == other.ids and all(torch.equal(a, b) for a, b in pairs)


NAMES = [f"example {number * 7 % 11}" for number in range(11)]


@pytest.fixture(params=[2**15, LAYERS * 4, 1])
def block(request, monkeypatch):
    monkeypatch.setattr(stored, "BLOCK", request.param)
    return request.param


@pytest.mark.parametrize("has_inputs", [True, False])
@pytest.mark.parametrize("sizes", [(11,), (4, 4, 3), (1, 10)])
def test_what_is_stored_in_batches_is_read_in_blocks(tmp_path, block, sizes, has_inputs):
    levels = [drawn(NAMES, seed, has_inputs=has_inputs) for seed in range(3)]
    with ExampleFile(tmp_path / "new") as file:
        for one, expected in zip(stored_pair(file, levels, *sizes), levels, strict=True):
            assert same(read(one), expected)
            assert one.ids == NAMES
            assert len([*one.blocks()]) == {2**15: 1, LAYERS * 4: 3, 1: 11}[block]
            assert torch.allclose(one.layer_losses, expected.layer_losses, rtol=1e-14)
            assert torch.allclose(one.layer_scores, expected.layer_scores, rtol=1e-14)
            assert (one.input_score is not None) == has_inputs
            last = one.last_layer()
            assert torch.equal(last.losses[0], expected.losses[-1])
            assert torch.equal(last.scores[0], expected.scores[-1])
        assert list((tmp_path / "new").iterdir()) == []
