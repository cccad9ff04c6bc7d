"""Discrete noise: what scanning, typing or transcribing does to a text before a model sees it.

Every character is replaced by a random one with probability p, and every word left out with probability p.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import numpy as np

from cudt.noise.base import TextNoise
from cudt.noise.seeding import example_seed

#: What a character may turn into.
ALPHABET = np.array(list(string.ascii_letters + string.digits + string.punctuation + " "))
_WORDS = re.compile(r"\s+|\S+\s*")


class Discrete(TextNoise):
    """Replaced characters and missing words, each with probability p."""

    def corrupt(self, texts: Sequence[str], level: float, seed: int | str, example_id: str) -> tuple[str, ...]:
        """The texts of one example at level p.

        The draws depend on (seed, example id) alone, and p decides which of them take effect: whatever is damaged at
        one level is damaged in the same way at every higher one, so that curves over p are paired.
        """
        generator = np.random.default_rng(example_seed(seed, example_id))
        return tuple(_corrupt(text, level, generator) for text in texts)


def _corrupt(text: str, probability: float, generator: np.random.Generator) -> str:
    words = [len(match.group()) for match in _WORDS.finditer(text)]
    removal, replacement = generator.random(len(words)), generator.random(len(text))
    substitutes = ALPHABET[generator.integers(len(ALPHABET), size=len(text))]
    # Not as "U1": numpy takes a NUL for the end of a string.
    characters = np.where(replacement < probability, substitutes, np.array(list(text), dtype=object))
    return "".join(characters[np.repeat(removal >= probability, words)])


NOISE = Discrete()
