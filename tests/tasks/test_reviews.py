from __future__ import annotations

import math

import pytest
import torch

from cudt.tasks.reviews import PRAISE, VOCABULARY, Config, Review, Reviews


@pytest.fixture(scope="module")
def task() -> Reviews:
    return Reviews(Config(name="reviews"))


def read_as_told(words: tuple[str, ...]) -> int:
    """The label by the rule: the adjective after "but", reversed by "not"."""
    verdict = words[words.index("but") + 1 :]
    return int((verdict[-1] in PRAISE) != ("not" in verdict))


def test_every_label_follows_the_rule(task):
    for split in ("train", "validation", "test"):
        assert all(read_as_told(review.words) == review.label for review in task.examples(split))


def counts(task: Reviews, split) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.zeros(len(task.examples(split)), len(VOCABULARY))
    for row, review in zip(rows, task.examples(split), strict=True):
        for word in review.words:
            row[VOCABULARY.index(word)] += 1
    return rows, torch.tensor([review.label for review in task.examples(split)])


def test_word_counts_alone_are_near_chance(task):
    x, y = counts(task, "train")
    weights = torch.zeros(x.shape[1], 2, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ weights, y) + 1e-4 * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    x_test, y_test = counts(task, "test")
    accuracy = ((x_test @ weights).argmax(1) == y_test).float().mean().item()
    assert accuracy < 0.6


def test_swapping_the_clauses_around_but_reverses_the_label(task):
    pairs = [review for review in task.examples("test") if "and" not in review.words]
    assert len(pairs) > 1000
    for review in pairs:
        cut = review.words.index("but")
        assert (
            read_as_told((*review.words[cut + 1 :], "but", *review.words[:cut])) == 1 - review.label
        )


def test_every_review_is_unique(task):
    everything = [
        review.words for split in ("train", "validation", "test") for review in task.examples(split)
    ]
    assert len(everything) == len(set(everything)) == 7000


def test_the_same_seed_gives_the_same_reviews():
    def first_reviews(data_seed: int) -> list[Review]:
        config = Config(name="reviews", train=20, validation=5, test=5, data_seed=data_seed)
        return list(Reviews(config).examples("train"))

    assert first_reviews(0) == first_reviews(0)
    assert first_reviews(0) != first_reviews(1)


def test_reference_is_the_entropy_of_the_labels(task):
    share = sum(review.label for review in task.examples("train")) / 4000
    assert task.reference_loss() == pytest.approx(
        -share * math.log(share) - (1 - share) * math.log(1 - share)
    )
    assert task.reference_loss() == pytest.approx(math.log(2), abs=1e-3)


def test_loss_and_score_are_those_of_a_classifier(task):
    batch = task.collate(task.examples("test")[:3])
    answer = torch.tensor([[2.0, -1.0], [0.0, 0.0], [-3.0, 1.0]])
    expected = [
        -answer[i].log_softmax(0)[label].item() for i, label in enumerate(batch["labels"].tolist())
    ]
    assert task.losses(answer, batch).tolist() == pytest.approx(expected)
    assert (
        task.scores(answer, batch).tolist()
        == (answer.argmax(1) == batch["labels"]).float().tolist()
    )
