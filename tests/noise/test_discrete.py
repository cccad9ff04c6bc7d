from __future__ import annotations

import itertools
import re
import string
from collections.abc import Sequence

import numpy as np
import pytest

from cudt.noise.discrete import ALPHABET, NOISE
from cudt.noise.seeding import example_seed

NASTY = [
    "",
    " ",
    "\n\t ",
    "word",
    "  two words, and  gaps\n\n\tof all kinds ",
    "naïve café — 30 €",
    "👩‍👩‍👧 🏳️‍🌈 e\u0301",
    "no\u00a0break\u2003wide\u200bnone",
    "a\x00b\x00",
    "half \ud83d",
]

#: Every character once, none of them one that noise puts in: words of nine letters and a wide space
#: each.
WORD = 10
LONG = "".join(chr(0x10000 + i) if i % WORD < WORD - 1 else "\u2003" for i in range(30_000))


def damage(text: str, probability: float, seed: int = 0, example: str = "x") -> str:
    return NOISE.corrupt((text,), probability, seed, example)[0]


@pytest.mark.parametrize("text", NASTY)
def test_level_zero_leaves_a_text_as_it_is(text):
    assert NOISE.corrupt((text, text), 0.0, 0, "x") == (text, text)


@pytest.mark.parametrize("text", NASTY)
def test_at_level_one_no_word_is_left(text):
    assert NOISE.corrupt((text,), 1.0, 0, "x") == ("",)


def test_what_comes_in_is_any_printable_character_of_ascii():
    assert sorted(ALPHABET.tolist()) == sorted(chr(code) for code in range(32, 127))
    assert set(damage(LONG, 0.3)) & set(string.printable) == set(ALPHABET.tolist())


@pytest.mark.parametrize("probability", [0.03, 0.1, 0.3, 0.6])
def test_a_share_p_of_words_is_gone_and_a_share_p_of_the_other_characters_replaced(probability):
    damaged = damage(LONG, probability)
    # Whole words go, with the space behind them. Four standard deviations of 3,000 words, and of
    # their characters.
    assert len(damaged) % WORD == 0
    assert 1 - len(damaged) / len(LONG) == pytest.approx(
        probability, abs=4 * (probability / 3000) ** 0.5
    )
    replaced = sum(character.isascii() for character in damaged) / len(damaged)
    assert replaced == pytest.approx(probability, abs=4 * (probability / len(damaged)) ** 0.5)


def words_by_position(damaged: str) -> dict[int, str]:
    """What became of each word that is left, by its position in the text; a character that is
    intact tells it."""
    words = {}
    for start in range(0, len(damaged), WORD):
        word = damaged[start : start + WORD]
        intact = [ord(character) - 0x10000 for character in word if ord(character) >= 0x10000]
        if intact:
            words[intact[0] // WORD] = word
    return words


def test_what_is_damaged_at_one_level_is_damaged_the_same_way_at_every_higher_one():
    levels = [words_by_position(damage(LONG, probability)) for probability in (0.05, 0.1, 0.2, 0.3)]
    for lower, higher in itertools.pairwise(levels):
        assert set(higher) < set(lower)
        for position, word in higher.items():
            for before, after in zip(lower[position], word, strict=True):
                assert after == before or not before.isascii()


def test_the_same_seed_and_example_have_the_same_damage_whatever_came_before():
    text = "the plot was not dull but the ending was really awful"
    first = damage(text, 0.3)
    damage("something else", 0.3, seed=4, example="y")
    assert damage(text, 0.3) == first != text


def test_the_texts_of_a_pair_are_damaged_each_by_itself():
    text = "the plot was not dull but the ending was really awful"
    premise, hypothesis = NOISE.corrupt((text, text), 0.3, 0, "x")
    assert premise == damage(text, 0.3)
    assert hypothesis != premise
    assert NOISE.corrupt((text, ""), 0.3, 0, "x") == (premise, "")


# ---------------------------------------------------------------- the draws, one text at a time


def literal(texts: Sequence[str], probability: float, seed: int, example: str) -> tuple[str, ...]:
    """The noise of one example, with words from a regular expression and a loop over characters."""
    generator = np.random.default_rng(example_seed(seed, example))
    damaged = []
    for text in texts:
        words = re.findall(r"\s+|\S+\s*", text)
        removal, replacement = generator.random(len(words)), generator.random(len(text))
        substitutes = ALPHABET[generator.integers(len(ALPHABET), size=len(text))]
        draws = iter(zip(replacement, substitutes, strict=True))
        made = [
            [new if u < probability else old for old, (u, new) in zip(word, draws, strict=False)]
            for word in words
        ]
        damaged.append(
            "".join(
                "".join(word) for word, u in zip(made, removal, strict=True) if u >= probability
            )
        )
    return tuple(damaged)


#: Code points from which texts are drawn: ASCII, Latin-1, white space of all kinds, NUL, combining
#: characters, surrogates, and the highest.
KINDS = [
    range(32, 127),
    range(256),
    [code for code in range(0x110000) if chr(code).isspace()],
    [0, 0x300, 0x301, 0x200B, 0x200D, 0xFE0F],
    range(0xD800, 0xE000),
    range(0x2FF0, 0x3010),
    [0x1F469, 0xFFFF, 0x10000, 0x10FFFF],
]


def drawn_text(generator: np.random.Generator, kinds: int) -> str:
    chosen = generator.choice(len(KINDS), size=kinds)
    size = generator.choice([0, 1, 2, 5, 40, 200])
    return "".join(chr(generator.choice(KINDS[generator.choice(chosen)])) for _ in range(size))


@pytest.mark.parametrize("kinds", [1, 2, 7])
@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_every_text_is_damaged_as_by_a_loop_over_its_characters(kinds, probability, monkeypatch):
    # Small parts, so that the examples are spread over several.
    monkeypatch.setattr("cudt.noise.discrete._AT_ONCE", 300)
    generator = np.random.default_rng(kinds)
    examples = [
        (f"id{number}", tuple(drawn_text(generator, kinds) for _ in range(number % 4)))
        for number in range(40)
    ]
    examples += [(f"nasty{number}", (text, text)) for number, text in enumerate(NASTY)]
    expected = [literal(texts, probability, 3, example) for example, texts in examples]
    assert NOISE.corrupt_all(examples, probability, 3) == expected
    assert [
        NOISE.corrupt(texts, probability, 3, example) for example, texts in examples
    ] == expected
