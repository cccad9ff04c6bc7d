"""Discrete noise: errors as in scanned, typed or transcribed texts.

Every character is replaced by a random one with probability p, and every word is removed with
probability p. A word includes the white space after it; white space at the start of a text is a
word of its own.
"""

from __future__ import annotations

import itertools
import string
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from cudt.noise.base import TextNoise
from cudt.noise.seeding import example_seed

#: The characters that replace others.
ALPHABET = np.array(list(string.ascii_letters + string.digits + string.punctuation + " "))
_CODES = np.array([ord(character) for character in ALPHABET.tolist()], dtype=np.uint8)
#: Whether a character is white space, by its code; none is beyond the last entry, which stands for
#: all higher codes.
_SPACES = np.array([chr(code).isspace() for code in range(0x3002)])
#: Characters that are processed together: enough to hide the cost of numpy's calls, few enough for
#: the caches.
_AT_ONCE = 1 << 15

Examples: TypeAlias = "Sequence[tuple[str, Sequence[str]]]"
Array: TypeAlias = "np.ndarray[Any, Any]"


class Discrete(TextNoise):
    """Replaced characters and removed words, each with probability p.

    The draws depend only on (seed, example id), and p decides which of them take effect: a change
    at one level is the same change at every higher level, so curves over p are paired.
    """

    def corrupt(
        self, texts: Sequence[str], level: float, seed: int | str, example_id: str
    ) -> tuple[str, ...]:
        """The texts of one example at level p."""
        return self.corrupt_all([(example_id, texts)], level, seed)[0]

    def corrupt_all(
        self, examples: Examples, level: float, seed: int | str
    ) -> list[tuple[str, ...]]:
        """The same for many examples, in their order."""
        return [example for part in _parts(examples) for example in _corrupt(part, level, seed)]


def _parts(examples: Examples) -> Iterator[Examples]:
    """The examples in parts of about the same number of characters."""
    start = size = 0
    for stop, (_, texts) in enumerate(examples, 1):
        size += sum(map(len, texts))
        if size >= _AT_ONCE or stop == len(examples):
            yield examples[start:stop]
            start, size = stop, 0


def _corrupt(examples: Examples, probability: float, seed: int | str) -> Iterator[tuple[str, ...]]:
    texts = [text for _, texts in examples for text in texts]
    codes, encoding = _encoded("".join(texts))
    ends: Array = np.cumsum([0, *map(len, texts)])
    starts = _word_starts(codes, ends)
    word_ends: Array = np.asarray(starts.searchsorted(ends))
    kept, replaced, substitutes = _draw(
        examples, probability, seed, ends.tolist(), word_ends.tolist()
    )
    lengths = np.diff(starts, append=len(codes))
    left = (
        np.where(replaced, substitutes, codes)[np.repeat(kept, lengths)]
        .tobytes()
        .decode(encoding, "surrogatepass")
    )
    left_ends = np.concatenate(([0], np.cumsum(kept * lengths)))[word_ends].tolist()
    cut = (left[start:stop] for start, stop in itertools.pairwise(left_ends))
    return (tuple(itertools.islice(cut, len(texts))) for _, texts in examples)


def _encoded(text: str) -> tuple[Array, str]:
    """The code of each character, in one byte if all of them fit and else in four, and the
    encoding.
    """
    try:
        return np.frombuffer(bytearray(text, "latin-1"), np.uint8), "latin-1"
    except UnicodeEncodeError:
        encoding = f"utf-32-{'le' if sys.byteorder == 'little' else 'be'}"
        return np.frombuffer(bytearray(text, encoding, "surrogatepass"), np.uint32), encoding


def _word_starts(codes: Array, ends: Array) -> Array:
    """The index of the first character of each word, given where texts begin and end."""
    spaces = _SPACES.take(codes, mode="clip")
    begins = ~spaces
    begins[1:] &= spaces[:-1]
    begins[ends[:-1][np.diff(ends) > 0]] = True
    return np.flatnonzero(begins)


def _draw(
    examples: Examples,
    probability: float,
    seed: int | str,
    ends: Sequence[int],
    word_ends: Sequence[int],
) -> tuple[Array, ...]:
    """Whether each word is kept, whether each character is replaced, and the code of the one that
    would replace it.
    """
    kept: Array = np.empty(word_ends[-1], dtype=bool)
    replaced: Array = np.empty(ends[-1], dtype=bool)
    substitutes: Array = np.empty(ends[-1], dtype=_CODES.dtype)
    slices = zip(_slices(ends), _slices(word_ends), strict=True)
    for example_id, texts in examples:
        generator = np.random.default_rng(example_seed(seed, example_id))
        # Texts first: the zip then ends without taking the slices of the next example.
        for text, (characters, words) in zip(texts, slices, strict=False):
            np.greater_equal(
                generator.random(words.stop - words.start), probability, out=kept[words]
            )
            np.less(generator.random(len(text)), probability, out=replaced[characters])
            _CODES.take(
                generator.integers(len(_CODES), size=len(text)),
                out=substitutes[characters],
                mode="clip",
            )
    return kept, replaced, substitutes


def _slices(ends: Sequence[int]) -> Iterator[slice]:
    return itertools.starmap(slice, itertools.pairwise(ends))


NOISE = Discrete()
