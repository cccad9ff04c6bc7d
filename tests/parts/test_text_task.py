"""Text classification: losses, splits, batches, noise, other test data."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cudt.config.tasks import TASKS, LossName, Text
from cudt.tasks import text
from cudt.tasks.base import SPLITS, build_task
from cudt.tasks.text import TextClassification, class_losses, loss_of_guessing
from cudt.utils.errors import DataWarning, UserError
from tests.pretrained import tiny_pretrained, tiny_tokenizer
from tests.texts import write_reviews

NAMES: list[LossName] = ["cross_entropy", "brier", "clipped_cross_entropy"]
REAL = os.environ.get("CUDT_DATA_ROOT")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    return tiny_pretrained(tmp_path_factory.mktemp("pretrained") / "bert")


def build(folder: Path, pretrained: str | None, **changes: Any) -> TextClassification:
    write_reviews(folder)
    files = {"train": "train.csv", "test": "test.csv", "text": "review", "label": "opinion"}
    section = Text(name="text", **{**files, "max_length": 16, **changes})
    return text.build(section, folder, pretrained)


def tokens(task: TextClassification, split: Any) -> dict[str, list[int]]:
    return {one.id: one.inputs["input_ids"].tolist() for one in task.examples(split)}


def literal(name: str, p: Sequence[float], label: int) -> float:
    if name == "brier":
        return sum((value - (label == k)) ** 2 for k, value in enumerate(p))
    least = 1 / (100 * len(p)) if name == "clipped_cross_entropy" else 0.0
    return -math.log(max(p[label], least))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_classes", [2, 7])
def test_losses_equal_their_formulas(name, n_classes):
    generator = torch.Generator().manual_seed(n_classes)
    logits = 5 * torch.randn(200, n_classes, dtype=torch.double, generator=generator)
    labels = torch.randint(n_classes, (200,), generator=generator)
    rows = zip(logits.softmax(-1).tolist(), labels.tolist(), strict=True)
    expected = [literal(name, p, label) for p, label in rows]
    assert class_losses(name, logits, labels).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (0.999, 0.0005, 0.0005)])
def test_the_loss_of_guessing_is_that_of_the_best_constant_answer(name, shares):
    # Answers (p_1, p_2, p_3) all over the simplex, and the shares with classes left out.
    grid = [(i, j, 200 - i - j) for i in range(201) for j in range(201 - i)]
    kept = np.array(shares) * [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    p = np.vstack([np.array(grid) / 200, kept / kept.sum(1, keepdims=True)])
    least = 1 / 300 if name == "clipped_cross_entropy" else 1e-300
    mean = np.zeros(len(p))
    for label, share in enumerate(shares):
        squares = ((p - np.eye(3)[label]) ** 2).sum(1)
        mean += share * (squares if name == "brier" else -np.log(np.maximum(p[:, label], least)))
    assert loss_of_guessing(name, shares) == pytest.approx(mean.min(), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_uses_the_loss_of_its_recipe_and_the_reference_follows(name, tmp_path, pretrained):
    task = build(tmp_path, pretrained, loss=name)
    batch, answer = task.collate(task.examples("train")[:4]), torch.randn(4, 2)
    assert torch.equal(task.losses(answer, batch), class_losses(name, answer, batch["labels"]))
    assert torch.equal(task.scores(answer, batch).bool(), answer.argmax(1) == batch["labels"])
    share = sum(example.label for example in task.examples("train")) / 54
    assert task.reference_loss() == pytest.approx(loss_of_guessing(name, [1 - share, share]))


def test_validation_is_held_out_of_train_by_seed_and_a_limit_keeps_ids(tmp_path, pretrained):
    def ids(**changes: Any) -> dict[str, set[str]]:
        task = build(tmp_path, pretrained, validation_share=0.25, **changes)
        return {split: {one.id for one in task.examples(split)} for split in SPLITS}

    whole, few = ids(), ids(limit={"train": 10, "test": 7})
    assert [len(whole[split]) for split in SPLITS] == [45, 15, 30]
    assert whole["train"] | whole["validation"] == {f"train.csv-{row}" for row in range(60)}
    assert [len(few[split]) for split in SPLITS] == [10, 15, 7]
    assert all(few[split] <= whole[split] for split in SPLITS)
    # The file is sorted by label: rows are drawn from both halves.
    assert len({int(name.partition("-")[2]) < 30 for name in few["train"]}) == 2
    assert ids(data_seed=1)["validation"] != whole["validation"]


def test_test_data_are_read_when_they_are_used(tmp_path, pretrained):
    task = build(tmp_path, pretrained)
    (tmp_path / "test.csv").write_text("review,opinion\na fine film,great\n")
    with pytest.raises(UserError, match=r"test data: label 'great' does not occur in the training"):
        task.examples("test")
    with pytest.raises(UserError, match="data file 'gone' does not exist"):
        build(tmp_path, pretrained, test="gone")


def test_examples_of_the_training_data_are_reported(tmp_path, pretrained):
    task = build(tmp_path, pretrained, test="train.csv", train="test.csv", validation="train.csv")
    with pytest.warns(DataWarning, match=r"test data: \d+ of 60 are also in the training"):
        assert len(task.examples("test")) == 60


def test_the_fingerprint_changes_with_the_data_and_the_tokenizer_alone(tmp_path, pretrained):
    other = tiny_pretrained(tmp_path / "roberta", "roberta")
    changes: Any = ({"max_length": 15}, {"data_seed": 1}, {"limit": {"test": 29}})
    found = [build(tmp_path, pretrained, **one).fingerprint(SPLITS) for one in changes]
    task = build(tmp_path, pretrained)
    found += [task.fingerprint(SPLITS), build(tmp_path, other).fingerprint(SPLITS)]
    assert len(set(found)) == 5
    # A tokenizer keeps the truncation of its last call.
    task.tokenizer(["some text"], truncation=True, max_length=4, padding=True)
    assert task.fingerprint(SPLITS) == found[3]


@pytest.mark.filterwarnings("ignore::cudt.utils.errors.DataWarning")
def test_pairs_are_joined_with_the_tokenizers_separator_and_texts_are_cut(tmp_path, pretrained):
    task = build(tmp_path, pretrained, text=["review", "opinion"], max_length=9)
    example, row = task.examples("test")[0], task.rows("test")[0]
    expected = tiny_tokenizer()(*row.texts, truncation=True, max_length=9)
    batch = task.collate([example])
    for name in ("input_ids", "token_type_ids"):
        assert batch[name][0].tolist() == expected[name]
    (new,) = task.from_texts([row.texts])
    assert new.inputs["input_ids"].tolist() == expected["input_ids"]
    with pytest.raises(UserError, match="expected pairs of texts"):
        task.from_texts([("a good film",)])


@pytest.mark.skipif(not REAL, reason="needs real data: set CUDT_DATA_ROOT")
@pytest.mark.parametrize(("name", "n_classes"), [("imdb", 2), ("mnli", 3)])
@pytest.mark.filterwarnings("ignore::cudt.utils.errors.DataWarning")
def test_the_real_data_are_read(name, n_classes, pretrained):
    limit = {"train": 60, "validation": 10, "test": 20}
    section = TASKS[name].model_validate({"name": name, "limit": limit, "max_length": 32})
    task = build_task(section, Path(str(REAL)), pretrained)
    assert isinstance(task, TextClassification)
    assert [len(task.examples(split)) for split in SPLITS] == [60, 10, 20]
    assert task.n_classes == n_classes
    assert math.log(n_classes) * 0.9 < task.reference_loss() <= math.log(n_classes)
