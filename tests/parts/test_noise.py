"""The three kinds of noise, and their levels."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from cudt.config.levels import distribution, scale_of, training_level
from cudt.noise import ALPHABET, DISCRETE, example_seed, noise_kind


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_it_has_mean_zero_and_variance_one_within_one_percent(kind):
    noise = noise_kind(kind).standard((1000, 1000), torch.Generator().manual_seed(0))
    assert abs(noise.mean().item()) < 0.005
    assert noise.var().item() == pytest.approx(1, rel=0.01)
    if kind == "uniform":
        assert noise.abs().max().item() <= math.sqrt(3)


NASTY = ["", "\n\t ", "  two words, and  gaps\n\n\tof all kinds ", "naïve café — 30 €"]
NASTY += ["👩‍👩‍👧 🏳️‍🌈 e\u0301", "no\u00a0break\u2003wide\u200bnone", "a\x00b\x00", "half \ud83d"]


def literal(texts: Sequence[str], level: float, seed: int, example: str) -> tuple[str, ...]:
    """The noise of one example, with a loop over all characters."""
    generator = np.random.default_rng(example_seed(seed, example))
    damaged = []
    for text in texts:
        words = re.findall(r"\s+|\S+\s*", text)
        removal, replacement = generator.random(len(words)), generator.random(len(text))
        substitutes = [ALPHABET[index] for index in generator.integers(95, size=len(text))]
        draws = iter(zip(replacement, substitutes, strict=True))
        made = [
            [new if u < level else old for old, (u, new) in zip(word, draws, strict=False)]
            for word in words
        ]
        kept = ["".join(word) for word, u in zip(made, removal, strict=True) if u >= level]
        damaged.append("".join(kept))
    return tuple(damaged)


@pytest.mark.parametrize("level", [0.0, 0.1, 0.5, 1.0])
def test_every_text_is_damaged_as_by_a_loop_over_its_characters(level):
    generator = np.random.default_rng(0)
    kinds = [range(32, 127), range(0x2000, 0x2070), range(0xD7F0, 0xE010), [0, 10, 32, 0x1F469]]
    for number in range(40):
        codes = [generator.choice(kinds[generator.integers(4)]) for _ in range(5 * number)]
        texts = ("".join(map(chr, codes)), *generator.choice(NASTY, 2))
        expected = literal(texts, level, 3, f"id{number}")
        assert DISCRETE.corrupt(texts, level, 3, f"id{number}") == expected


def test_no_training_has_seen_damaged_texts():
    assert [scale_of(kind).symbol for kind in ("gaussian", "uniform", "discrete")] == list("γγp")
    assert [training_level(kind, 0.4) for kind in ("uniform", "discrete")] == [0.4, 0.0]
    uniform = [distribution("uniform", level, 0.4) for level in (0.0, 0.4, 0.41)]
    assert uniform == ["ID", "ID", "OOD"]
    assert [distribution("discrete", level, 0.4) for level in (0.0, 0.1)] == ["ID", "OOD"]
