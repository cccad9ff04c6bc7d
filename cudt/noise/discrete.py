"""Discrete noise: errors as in scanned, typed or transcribed texts.

Every character is replaced by a random one with probability p, and every word is removed with probability p.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import numpy as np

from cudt.noise.base import TextNoise
from cudt.noise.seeding import example_seed

#: The characters that replace others.
ALPHABET = np.array(list(string.ascii_letters + string.digits + string.punctuation + " "))
_WORDS = re.compile(r"\s+|\S+\s*")


class Discrete(TextNoise):
    """Replaced characters and removed words, each with probability p."""

    def corrupt(self, texts: Sequence[str], level: float, seed: int | str, example_id: str) -> tuple[str, ...]:
        """The texts of one example at level p.

        The draws depend only on (seed, example id), and p decides which of them take effect: a change at one level is
        the same change at every higher level, so curves over p are paired.
        """
        generator = np.random.default_rng(example_seed(seed, example_id))
        return tuple(_corrupt(text, level, generator) for text in texts)


def _corrupt(text: str, probability: float, generator: np.random.Generator) -> str:
    words = [len(match.group()) for match in _WORDS.finditer(text)]
    removal, replacement = generator.random(len(words)), generator.random(len(text))
    substitutes = ALPHABET[generator.integers(len(ALPHABET), size=len(text))]
    # As objects, because numpy's string type drops a trailing NUL.
    characters = np.where(replacement < probability, substitutes, np.array(list(text), dtype=object))
    return "".join(characters[np.repeat(removal >= probability, words)])


NOISE = Discrete()
