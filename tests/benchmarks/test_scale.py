"""The cost model against counts: operations, weights and bytes of small models of the paper's classes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scale import counters, formulas, memory
from benchmarks.scale.networks import Work
from benchmarks.scale.shapes import PAPER, Shape

CAUSAL = Shape("causal", 3, 32, 40, 12, 4, 16, 50, read=5, examples=2)
PATCHES = Shape("dust", 3, 16, 36, 4, examples=2, sequences=3)
SHAPES = [
    Shape("encoder", 3, 32, 40, 12, heads=4, words=50, examples=2),
    Shape("vit", 2, 48, 40, 17, heads=4, sequences=2),
    CAUSAL,
    replace(CAUSAL, recompute=True),
    replace(CAUSAL, lora=False),
    replace(CAUSAL, lora=False, recompute=True),
    Shape("ut", 3, 32, 8, 12, words=50, examples=2, tied=True),
    PATCHES,
    replace(PATCHES, tied=True),
    replace(PATCHES, family="ut_video", tied=True),
]


@pytest.mark.parametrize("shape", SHAPES, ids=memory.kind)
def test_the_formulas_give_what_is_counted(shape):
    work, expected = Work(shape), formulas.operations(shape)
    for readouts in (1, shape.layers):
        assert counters.operations(lambda: work.update(readouts)) == expected.update(readouts)  # noqa: B023
    assert counters.operations(work.evaluate) == expected.evaluation(shape.layers)
    weights = formulas.weights(shape)
    assert sum(weight.numel() for weight in work.learned) == weights.trained


def test_the_paper_s_models_have_their_published_sizes():
    assert formulas.weights(PAPER["roberta"]).all == pytest.approx(355e6, rel=0.01)
    assert formulas.weights(PAPER["bert"]).all == pytest.approx(110e6, rel=0.02)
    assert formulas.weights(replace(PAPER["llama"], lora=False)).all == 8_030_261_248
    assert formulas.weights(replace(PAPER["llama-70b"], lora=False)).all == 70_553_706_496
