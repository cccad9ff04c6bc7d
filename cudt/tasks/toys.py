"""Two generated tasks, which need no data.

`reviews` are film reviews whose sentiment word counts cannot tell:

    the plot was not dull and the cast was charming but the ending was really awful      → negative

The clause after "but" determines the label, the clauses before it say the opposite, and "not"
reverses the adjective that follows. Word order alone shows which clause is last, and whether "not"
belongs to an adjective.

`shapes` are videos of shapes that drift over a textured background, which does not move, as for a
fixed camera.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from cudt.config import tasks as sections
from cudt.data.loader import Batch
from cudt.data.video import Footage, Frames, digest_of
from cudt.tasks.base import IGNORED, Split
from cudt.tasks.text import Classification, Row
from cudt.tasks.video import VideoDenoising
from cudt.utils.errors import UserError

PRAISE = ("good", "great", "superb", "lovely", "brilliant", "charming", "fine", "moving")
BLAME = ("bad", "awful", "dull", "boring", "clumsy", "weak", "poor", "tedious")
ASPECTS = ("plot", "acting", "music", "script", "ending", "cast", "camera", "dialogue")
ADVERBS = ("really", "quite", "rather", "very", "so")
GRAMMAR = ("the", "was", "not", "and", "but")
#: The padding word comes first, so that its index is 0.
VOCABULARY = ("<pad>", *GRAMMAR, *ASPECTS, *ADVERBS, *PRAISE, *BLAME)
#: Three clauses of six words at most, joined by two words.
MAX_LENGTH = 20
#: Training data come last, so that their number does not change the others.
_ORDER: tuple[Split, ...] = ("test", "validation", "train")


def write_review(rng: random.Random) -> tuple[tuple[str, ...], int]:
    """A random review and its label: one or two clauses of the opposite opinion, "but", and the
    final clause.
    """
    label = rng.randrange(2)
    words: list[str] = []
    for _ in range(rng.choice((1, 1, 2))):
        words += [*_clause(rng, praises=not label), "and"]
    words[-1] = "but"
    return (*words, *_clause(rng, praises=bool(label))), label


def _clause(rng: random.Random, praises: bool) -> list[str]:
    negated = rng.random() < 0.5
    adjective = rng.choice(PRAISE if praises != negated else BLAME)
    adverb = [rng.choice(ADVERBS)] if rng.random() < 0.4 else []
    return ["the", rng.choice(ASPECTS), "was", *adverb, *(["not"] if negated else []), adjective]


class Reviews(Classification):
    """Two classes: negative and positive. The texts of an example are its words."""

    classes = ("negative", "positive")
    vocabulary_size = len(VOCABULARY)
    max_length = MAX_LENGTH

    def __init__(self, config: sections.Reviews) -> None:
        self.loss = config.loss
        self._splits: dict[Split, list[Row]] = {split: [] for split in _ORDER}
        rng = random.Random(config.data_seed)
        # Every review is unique, within and across splits.
        seen: set[tuple[str, ...]] = set()
        for split, reviews in self._splits.items():
            while len(reviews) < getattr(config, split):
                words, label = write_review(rng)
                if words not in seen:
                    seen.add(words)
                    reviews.append(Row(f"{split}-{len(reviews)}", words, label))

    def examples(self, split: Split) -> Sequence[Row]:
        return self._splits[split]

    def from_texts(self, texts: Sequence[tuple[str, ...]]) -> Sequence[Row]:
        known = {*VOCABULARY}
        made = [
            Row(str(index), (*" ".join(parts).split(),), IGNORED)
            for index, parts in enumerate(texts)
        ]
        if not all(0 < len(one.texts) <= MAX_LENGTH and {*one.texts} <= known for one in made):
            words = ", ".join(VOCABULARY[1:])
            raise UserError(f"a review has 1 to {MAX_LENGTH} words, which are of: {words}")
        return made

    def collate(self, examples: Sequence[Row]) -> Batch:
        rows = [torch.tensor([VOCABULARY.index(word) for word in one.texts]) for one in examples]
        words = pad_sequence(rows, batch_first=True)
        return {
            "ids": [review.id for review in examples],
            "input_ids": words,
            "attention_mask": (words > 0).long(),
            "labels": torch.tensor([review.label for review in examples]),
        }


def reviews(config: sections.Reviews, data_root: Path | None, pretrained: str | None) -> Reviews:
    """The task `reviews`."""
    return Reviews(config)


def shapes(
    config: sections.Shapes, data_root: Path | None, pretrained: str | None
) -> VideoDenoising:
    """The task `shapes`."""
    rng = np.random.default_rng(config.data_seed)
    footage: dict[Split, list[Footage]] = {split: [] for split in _ORDER}
    for split, clips in footage.items():
        for number in range(getattr(config, split)):
            frames = make_clip(rng, config.clip_length, config.size)
            clips.append(Footage(f"clip-{number}", frames, digest_of(frames)))
    return VideoDenoising(config, footage.__getitem__)


def make_clip(rng: np.random.Generator, length: int, size: int) -> Frames:
    """A clip of two to four shapes that bounce off the edges, (length, size, size), 8 bit."""
    background = _texture(rng, size)
    pixels = np.mgrid[:size, :size] + 0.5
    shapes = [_Shape(rng, size) for _ in range(rng.integers(2, 5))]
    frames = []
    for time in range(length):
        frame = background.copy()
        for shape in shapes:
            frame[shape.covers(pixels, time)] = shape.shade
        frames.append(frame.clip(0, 255).round().astype(np.uint8))
    return np.stack(frames)


def _texture(rng: np.random.Generator, size: int) -> Frames:
    """A sum of plane waves around a medium grey, with amplitudes that fall with the frequency."""
    rows, columns = np.mgrid[:size, :size] / size
    picture = np.full((size, size), rng.uniform(90, 140))
    for _ in range(12):
        frequency = rng.uniform(0.5, 12)
        angle, phase = rng.uniform(0, 2 * np.pi, 2)
        distance = rows * np.sin(angle) + columns * np.cos(angle)
        picture += 28 / (1 + frequency / 2) * np.sin(2 * np.pi * frequency * distance + phase)
    return picture


class _Shape:
    """A disc or a square with a position, a speed and a shade of grey."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self.size = size
        self.is_disc = bool(rng.integers(2))
        self.radius = rng.uniform(0.06, 0.14) * size
        self.centre = rng.uniform(self.radius, size - self.radius, 2)
        self.speed = rng.uniform(-0.03, 0.03, 2) * size
        self.shade = rng.choice([rng.uniform(10, 50), rng.uniform(200, 250)])

    def covers(self, pixels: Frames, time: int) -> Frames:
        """Which pixels the shape covers after some frames; it bounces off the edges."""
        room = self.size - 2 * self.radius
        folded = np.mod(self.centre + time * self.speed - self.radius, 2 * room)
        centre = self.radius + np.minimum(folded, 2 * room - folded)
        down, across = np.abs(pixels - centre[:, None, None])
        distance = np.hypot(down, across) if self.is_disc else np.maximum(down, across)
        return distance <= self.radius
