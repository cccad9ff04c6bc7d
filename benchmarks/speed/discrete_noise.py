"""Discrete noise in texts against nlpaug and against a loop over characters."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable

import numpy as np

from benchmarks.speed.bench import Bench, Outcome, Setting, SkippedError, interleaved
from cudt.noise.discrete import ALPHABET, NOISE
from cudt.noise.seeding import example_seed

_LEVEL = 0.1
_REVIEWS = 300


def texts() -> list[tuple[str, tuple[str]]]:
    """Generated texts of the length of film reviews: 80 to 380 words, 1,500 characters on average."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*"etaoinshrdlu"], size=rng.integers(1, 11))) for _ in range(2000)]
    return [(f"test-{i}", (" ".join(rng.choice(words, size=rng.integers(80, 380))),)) for i in range(_REVIEWS)]


def loop(text: str, example_id: str) -> str:
    """The same noise, one character after another."""
    rng, alphabet, left = random.Random(example_id), ALPHABET.tolist(), []
    for word in re.findall(r"\s+|\S+\s*", text):
        if rng.random() >= _LEVEL:
            for character in word:
                left.append(rng.choice(alphabet) if rng.random() < _LEVEL else character)
    return "".join(left)


def draws(examples: list[tuple[str, tuple[str]]]) -> None:
    """Only what decides about words and characters: the part that no implementation with these draws can save."""
    for example_id, (text,) in examples:
        generator = np.random.default_rng(example_seed(0, example_id))
        generator.random(text.count(" ") + 1)
        generator.random(len(text))
        generator.integers(len(ALPHABET), size=len(text))


def nlpaug_pipeline() -> Callable[[str], object]:
    """nlpaug's substitution of characters, then its deletion of words, at the same level."""
    try:
        import nlpaug.augmenter.char as characters
        import nlpaug.augmenter.word as words
    except ImportError:
        raise SkippedError("nlpaug is not installed; install the extra `bench`") from None
    everywhere = {"aug_char_min": 0, "aug_char_max": None, "aug_word_min": 0, "aug_word_max": None, "min_char": 1}
    substitute = characters.RandomCharAug(aug_char_p=_LEVEL, aug_word_p=1.0, **everywhere)
    delete = words.RandomWordAug(aug_p=_LEVEL, aug_min=0, aug_max=None)
    return lambda text: delete.augment(substitute.augment(text))


def measure(setting: Setting) -> list[Outcome]:
    examples = texts()
    outcomes = [_against("discrete-noise ÷ Python loop", 5.0, examples, loop)]
    augment = nlpaug_pipeline()
    few = examples[:20]
    # Twenty texts take cudt a millisecond, which is too short to time: it corrupts them twenty times in a round.
    return [
        *outcomes,
        _against("discrete-noise ÷ nlpaug", 50.0, few, lambda text, _: augment(text), rounds=5, times=20),
    ]


def _against(
    name: str,
    goal: float,
    examples: list[tuple[str, tuple[str]]],
    peer: Callable[[str, str], object],
    rounds: int = 15,
    times: int = 1,
) -> Outcome:
    many = examples * times

    def ours() -> None:
        NOISE.corrupt_all(many, _LEVEL, 0)

    def theirs() -> None:
        for example_id, (text,) in examples:
            peer(text, example_id)

    mine, others = interleaved(ours, theirs, rounds=rounds)
    least, _ = interleaved(lambda: draws(many), ours, rounds=rounds)
    speeds = [len(many) / seconds for seconds in mine]
    peers = [len(examples) / seconds for seconds in others]
    return Outcome(
        statistics.median(speeds),
        statistics.median(peers),
        "texts/s",
        tuple(one / other for one, other in zip(speeds, peers, strict=True)),
        times * statistics.median(others) / statistics.median(least),
        "the limit is that of the draws alone",
        name,
        goal,
    )


BENCH = Bench(
    name="discrete-noise",
    what=f"texts/s of discrete noise at p = {_LEVEL} ÷ of the peer, one thread",
    goal=50.0,
    higher_is_better=True,
    measure=measure,
)
