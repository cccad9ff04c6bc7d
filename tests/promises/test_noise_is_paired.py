"""Noise is paired: an example's draw depends on (seed, id) alone, and levels scale one draw."""

from __future__ import annotations

import itertools

import pytest
import torch

from cudt.noise import DISCRETE, NoiseSource

LENGTHS = {"a": 4, "b": 1, "c": 6, "d": 3}
#: Every character once, none of them one that noise puts in: words of nine letters and a wide space
#: each.
WORD = 10
LONG = "".join(chr(0x10000 + i) if i % WORD < WORD - 1 else "\u2003" for i in range(30_000))


def drawn(ids: str, kind: str = "gaussian", seed: int = 0, pad_to: int = 6) -> torch.Tensor:
    lengths = [LENGTHS[name] for name in ids]
    return NoiseSource(kind, 1.0, seed).draw(list(ids), lengths, (len(ids), pad_to, 5))


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_an_examples_noise_depends_on_neither_batch_nor_order_nor_padding(kind):
    together = drawn("abcd", kind)
    for row, name in enumerate("abcd"):
        length = LENGTHS[name]
        assert torch.equal(together[row], drawn("dcba", kind)[3 - row])
        assert torch.equal(together[row, :length], drawn(name, kind, pad_to=length)[0])
        assert torch.equal(together[row, :length], drawn("abcd", kind, pad_to=9)[row, :length])
        assert bool(together[row, :length].all())
        assert not together[row, length:].any()


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_another_seed_or_example_is_another_draw(kind):
    assert torch.equal(drawn("a", kind), drawn("a", kind))
    assert not torch.allclose(drawn("a", kind), drawn("a", kind, seed=1))
    assert not torch.allclose(drawn("a", kind)[:, :3], drawn("d", kind)[:, :3])


def words_by_position(level: float) -> dict[int, str]:
    """What became of each word that is left, by its position in the text; a character that is
    intact tells it."""
    (damaged,), words = DISCRETE.corrupt((LONG,), level, 0, "x"), {}
    assert (damaged,) == DISCRETE.corrupt((LONG,), level, 0, "x")
    assert (damaged,) != DISCRETE.corrupt((LONG,), level, 1, "x")
    for start in range(0, len(damaged), WORD):
        word = damaged[start : start + WORD]
        intact = [ord(character) - 0x10000 for character in word if ord(character) >= 0x10000]
        if intact:
            words[intact[0] // WORD] = word
    return words


def test_what_is_damaged_in_a_text_at_one_level_is_damaged_the_same_way_at_every_higher_one():
    levels = [words_by_position(level) for level in (0.05, 0.1, 0.2, 0.3)]
    for lower, higher in itertools.pairwise(levels):
        assert set(higher) < set(lower)
        for position, word in higher.items():
            for before, after in zip(lower[position], word, strict=True):
                assert after == before or not before.isascii()
