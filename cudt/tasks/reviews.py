"""Generated film reviews: a sentiment task that needs no data and that word counts cannot solve.

    the plot was not dull and the cast was charming but the ending was really awful      → negative

The clause after "but" determines the label, the clauses before it say the opposite, and "not"
reverses the adjective that follows. Word order alone shows which clause is last, and whether "not"
belongs to an adjective; a test shows that word counts alone are near chance.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config import tasks as sections
from cudt.data.splits import Split
from cudt.tasks.base import IGNORED
from cudt.tasks.classification import Classification
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.data.batching import Batch

PRAISE = ("good", "great", "superb", "lovely", "brilliant", "charming", "fine", "moving")
BLAME = ("bad", "awful", "dull", "boring", "clumsy", "weak", "poor", "tedious")
ASPECTS = ("plot", "acting", "music", "script", "ending", "cast", "camera", "dialogue")
ADVERBS = ("really", "quite", "rather", "very", "so")
GRAMMAR = ("the", "was", "not", "and", "but")
#: The padding word comes first, so that its index is 0.
VOCABULARY = ("<pad>", *GRAMMAR, *ASPECTS, *ADVERBS, *PRAISE, *BLAME)
_INDEX = {word: index for index, word in enumerate(VOCABULARY)}
#: Three clauses of six words at most, joined by two words.
MAX_LENGTH = 20


Config = sections.Reviews


@dataclass(frozen=True)
class Review:
    """One review as words; `label` is 1 if it is positive."""

    id: str
    words: tuple[str, ...]
    label: int


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
    """Two classes: negative and positive."""

    version = 1
    n_classes = Config.n_classes
    classes = ("negative", "positive")
    vocabulary_size = len(VOCABULARY)
    max_length = MAX_LENGTH

    def __init__(self, config: Config) -> None:
        self.loss = config.loss
        self._splits: dict[Split, list[Review]] = {"train": [], "validation": [], "test": []}
        rng = random.Random(config.data_seed)
        seen: set[tuple[str, ...]] = set()
        # Every review is unique, within and across splits.
        sizes: dict[Split, int] = {
            "test": config.test,
            "validation": config.validation,
            "train": config.train,
        }
        for split, size in sizes.items():
            while len(self._splits[split]) < size:
                words, label = write_review(rng)
                if words not in seen:
                    seen.add(words)
                    self._splits[split].append(
                        Review(f"{split}-{len(self._splits[split])}", words, label)
                    )

    def examples(self, split: Split) -> Sequence[Review]:
        return self._splits[split]

    def from_texts(self, texts: Sequence[tuple[str, ...]]) -> Sequence[Review]:
        reviews = [
            Review(str(index), tuple(" ".join(parts).split()), IGNORED)
            for index, parts in enumerate(texts)
        ]
        for review in reviews:
            if unknown := [word for word in review.words if word not in _INDEX]:
                raise UserError(
                    f"text {review.id}: unknown word '{unknown[0]}'; reviews have the words "
                    f"{', '.join(VOCABULARY[1:])}"
                )
            if not 0 < len(review.words) <= MAX_LENGTH:
                raise UserError(
                    f"text {review.id}: expected 1 to {MAX_LENGTH} words, got {len(review.words)}"
                )
        return reviews

    def collate(self, examples: Sequence[Review]) -> Batch:
        import torch

        length = max(len(review.words) for review in examples)
        rows = [[_INDEX[word] for word in review.words] for review in examples]
        return {
            "ids": [review.id for review in examples],
            "input_ids": torch.tensor([row + [0] * (length - len(row)) for row in rows]),
            "attention_mask": torch.tensor(
                [[1] * len(row) + [0] * (length - len(row)) for row in rows]
            ),
            "labels": torch.tensor([review.label for review in examples]),
        }

    def train_labels(self) -> Sequence[int]:
        return [review.label for review in self._splits["train"]]


def build(config: Config, data_root: Path | None, pretrained: str | None) -> Reviews:
    """The task; it generates its data and has its own vocabulary, so it needs neither data root nor
    tokenizer.
    """
    return Reviews(config)
