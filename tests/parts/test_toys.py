"""The generated tasks: reviews and shapes."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from cudt.config.tasks import Reviews as ReviewsSection
from cudt.config.tasks import Shapes
from cudt.tasks import toys
from cudt.tasks.base import SPLITS, Split
from cudt.tasks.toys import PRAISE, VOCABULARY, Reviews
from cudt.tasks.video import VideoDenoising


@pytest.fixture(scope="module")
def task() -> Reviews:
    return Reviews(ReviewsSection(name="reviews"))


def label_by_rule(words: tuple[str, ...]) -> int:
    """The adjective after "but", reversed by "not"."""
    verdict = words[words.index("but") + 1 :]
    return int((verdict[-1] in PRAISE) != ("not" in verdict))


def test_every_review_is_unique_and_its_label_follows_the_rule(task):
    reviews = [review for split in SPLITS for review in task.examples(split)]
    assert len({review.texts for review in reviews}) == len(reviews) == 7000
    assert all(label_by_rule(review.texts) == review.label for review in reviews)
    share = sum(review.label for review in task.examples("train")) / 4000
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert task.reference_loss() == pytest.approx(entropy)


def test_word_counts_alone_are_near_chance(task):
    def counts(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        words = task.collate(task.examples(split))
        one_hot = torch.nn.functional.one_hot(words["input_ids"], len(VOCABULARY))
        return (one_hot * words["attention_mask"].unsqueeze(2)).sum(1).double(), words["labels"]

    (x, y), (x_test, y_test) = counts("train"), counts("test")
    weights = torch.linalg.lstsq(x, 2.0 * y.double() - 1, driver="gelsd").solution
    assert ((x_test @ weights > 0) == y_test.bool()).double().mean() < 0.6


def shapes(**changes: Any) -> VideoDenoising:
    settings = {"size": 16, "train": 3, "validation": 2, "test": 2, "clip_length": 12, "frames": 4}
    section = Shapes.model_validate({"name": "shapes", **settings, **changes})
    return toys.shapes(section, None, None)


def test_all_clips_differ_and_depend_on_the_seed():
    one, again, other = shapes(data_seed=1), shapes(data_seed=1), shapes(data_seed=2)
    windows = [(split, window) for split in SPLITS for window in one.examples(split)]
    clips = {(split, found.footage.name): found.footage.frames for split, found in windows}
    assert [clip.shape for clip in clips.values()] == [(12, 16, 16)] * 7
    assert not any(np.array_equal(a[0], b[0]) for a, b in combinations(clips.values(), 2))
    assert one.fingerprint(SPLITS) == again.fingerprint(SPLITS) != other.fingerprint(SPLITS)
    # The number of training clips does not change the others.
    assert shapes(data_seed=1, train=1).fingerprint(["test"]) == one.fingerprint(["test"])
