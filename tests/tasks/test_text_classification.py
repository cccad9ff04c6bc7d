from __future__ import annotations

import json
import os
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

from cudt.config.tasks import Limit
from cudt.tasks.base import SEEN
from cudt.noise import DISCRETE
from cudt.tasks import imdb, text
from cudt.tasks.text import TextClassification
from cudt.utils.errors import UserError
from tests.pretrained import tiny_pretrained, tiny_tokenizer
from tests.texts import write_reviews

REAL = os.environ.get("CUDT_DATA_ROOT")
real_data = pytest.mark.skipif(
    not REAL, reason="needs real data: set CUDT_DATA_ROOT to the folder that holds it"
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    return tiny_pretrained(tmp_path_factory.mktemp("pretrained") / "bert")


def build(folder: Path, pretrained: str | None, **changes: Any) -> TextClassification:
    write_reviews(folder)
    settings = {
        "train": "train.csv",
        "test": "test.csv",
        "text": "review",
        "label": "opinion",
        "max_length": 16,
    }
    return text.build(text.Config(name="text", **{**settings, **changes}), folder, pretrained)


# ---------------------------------------------------------------- other test data


def test_the_test_texts_of_another_task_replace_those_of_a_task(tmp_path, pretrained):
    own = build(tmp_path, pretrained)
    other = build(tmp_path, pretrained, limit={"test": 5}, data_seed=3)
    tested = own.tested_on(other)
    assert tested.fingerprint(SEEN) == own.fingerprint(SEEN)
    assert tested.fingerprint(["test"]) == other.fingerprint(["test"]) != own.fingerprint(["test"])
    rows = [
        (one.id, one.inputs["input_ids"].tolist(), one.label) for one in tested.examples("test")
    ]
    assert rows == [
        (one.id, one.inputs["input_ids"].tolist(), one.label) for one in other.examples("test")
    ]


def test_other_classes_and_pairs_are_refused(tmp_path, pretrained):
    own = build(tmp_path, pretrained)
    with pytest.raises(
        UserError, match="the other data have the classes 'awful', the run has 'great'; name data"
    ):
        _with(own, classes=["great"]).tested_on(_with(own, classes=["awful"]))
    with pytest.raises(
        UserError, match="the other data are pairs of texts, the run was trained on single texts"
    ):
        own.tested_on(build(tmp_path, pretrained, text=["review", "opinion"]))


def _with(task: TextClassification, classes: list[str]) -> TextClassification:
    return TextClassification(task._texts, classes, task.tokenizer, task.max_length)


# ---------------------------------------------------------------- splits


def test_validation_is_held_out_of_train_by_seed(tmp_path, pretrained):
    task = build(tmp_path, pretrained, validation_share=0.25)
    ids = {
        split: [example.id for example in task.examples(split)]
        for split in ("train", "validation", "test")
    }
    assert len(ids["train"]) == 45
    assert len(ids["validation"]) == 15
    assert len(ids["test"]) == 30
    assert not set(ids["train"]) & set(ids["validation"])
    assert all(example.startswith("train.csv-") for example in ids["validation"])
    again = build(tmp_path, pretrained, validation_share=0.25)
    assert [example.id for example in again.examples("validation")] == ids["validation"]
    other = build(tmp_path, pretrained, validation_share=0.25, data_seed=1)
    assert {example.id for example in other.examples("validation")} != set(ids["validation"])


def test_a_validation_file_is_used_completely(tmp_path, pretrained):
    task = build(tmp_path, pretrained, validation="test.csv")
    assert len(task.examples("train")) == 60
    assert {example.id for example in task.examples("validation")} == {
        example.id for example in task.examples("test")
    }


def test_a_limit_draws_from_all_of_a_split_and_keeps_ids(tmp_path, pretrained):
    whole = build(tmp_path, pretrained)
    few = build(tmp_path, pretrained, limit={"train": 10, "test": 7})
    assert len(few.examples("train")) == 10
    assert len(few.examples("test")) == 7
    assert len(few.examples("validation")) == len(whole.examples("validation")) == 6
    tokens = {
        example.id: example.inputs["input_ids"].tolist() for example in whole.examples("train")
    }
    assert all(
        tokens[example.id] == example.inputs["input_ids"].tolist()
        for example in few.examples("train")
    )
    # The file is sorted by label: the first rows have only one class.
    assert len({example.label for example in few.examples("train")}) == 2


# ---------------------------------------------------------------- tokens and batches


def test_a_batch_is_padded_to_its_longest_example_with_the_tokenizers_padding(tmp_path, pretrained):
    task = build(tmp_path, pretrained)
    examples = sorted(task.examples("train"), key=task.length)
    batch = task.collate([examples[0], examples[-1]])
    lengths = [task.length(examples[0]), task.length(examples[-1])]
    assert lengths[0] < lengths[1] <= 16
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, lengths[1])
    assert batch["attention_mask"].sum(1).tolist() == lengths
    assert batch["input_ids"][0, lengths[0] :].eq(0).all()
    assert batch["input_ids"][0, : lengths[0]].tolist() == examples[0].inputs["input_ids"].tolist()
    assert batch["ids"] == [examples[0].id, examples[-1].id]


def test_pairs_are_joined_with_the_tokenizers_separator(tmp_path, pretrained):
    rows = [{"one": "a good film", "two": "not bad", "label": number % 3} for number in range(12)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    task = text.build(
        text.Config(
            name="text", train="train.jsonl", test="test.jsonl", text=["one", "two"], label="label"
        ),
        tmp_path,
        pretrained,
    )
    expected = tiny_tokenizer()("a good film", "not bad")
    example = task.examples("test")[0]
    assert example.inputs["input_ids"].tolist() == expected["input_ids"]
    assert task.collate([example])["token_type_ids"][0].tolist() == expected["token_type_ids"]
    assert task.n_classes == 3


def test_discrete_noise_changes_the_source_texts(tmp_path, pretrained):
    task = build(tmp_path, pretrained)

    def tokens(probability: float, seed: int) -> dict[str, list[int]]:
        return {
            one.id: one.inputs["input_ids"].tolist()
            for one in task.corrupted("test", DISCRETE, probability, seed)
        }

    clean = {one.id: one.inputs["input_ids"].tolist() for one in task.examples("test")}
    assert tokens(0.0, 0) == clean
    assert tokens(0.3, 0) == tokens(0.3, 0) != clean
    assert tokens(0.3, 0) != tokens(0.3, 1)
    assert [one.label for one in task.corrupted("test", DISCRETE, 0.3, 0)] == [
        one.label for one in task.examples("test")
    ]


def test_losses_are_cross_entropies_of_the_true_class(tmp_path, pretrained):
    task = build(tmp_path, pretrained)
    answer, batch = torch.tensor([[2.0, 0.5], [0.1, 0.4]]), {"labels": torch.tensor([0, 0])}
    expected = [-log(torch.softmax(row, 0)[0].item()) for row in answer]
    assert task.losses(answer, batch).tolist() == pytest.approx(expected)
    assert task.scores(answer, batch).tolist() == [1.0, 0.0]


# ---------------------------------------------------------------- errors


def test_a_label_that_is_not_in_the_training_data_is_reported_with_file_and_row(
    tmp_path, pretrained
):
    write_reviews(tmp_path)
    with (tmp_path / "test.csv").open("a") as file:
        file.write("a film,mixed\n")
    settings: dict[str, Any] = {
        "train": "train.csv",
        "test": "test.csv",
        "text": "review",
        "label": "opinion",
    }
    with pytest.raises(
        UserError, match=r"test\.csv, row 31: label 'mixed' does not occur .*'bad', 'good'"
    ):
        text.build(text.Config(name="text", **settings), tmp_path, pretrained).examples("test")


def test_an_empty_split_is_reported_with_its_file(tmp_path, pretrained):
    write_reviews(tmp_path)
    (tmp_path / "empty.csv").write_text("review,opinion\n")
    with pytest.raises(UserError, match=r"empty\.csv: no examples in split 'empty\.csv'; add some"):
        build(tmp_path, pretrained, test="empty.csv").examples("test")


def test_the_test_file_is_read_late_but_a_missing_one_is_reported_at_once(tmp_path, pretrained):
    task = build(tmp_path, pretrained)
    (tmp_path / "test.csv").write_bytes(b"\xff\xff nothing that anyone could read")
    settings: dict[str, Any] = {
        "train": "train.csv",
        "test": "test.csv",
        "text": "review",
        "label": "opinion",
    }
    unread = text.build(text.Config(name="text", max_length=16, **settings), tmp_path, pretrained)
    assert unread.fingerprint(SEEN) == task.fingerprint(SEEN)
    with pytest.raises(UserError, match=r"test\.csv"):
        unread.examples("test")
    with pytest.raises(UserError, match=r"data file 'gone\.csv' does not exist"):
        build(tmp_path, pretrained, test="gone.csv")


# ---------------------------------------------------------------- the real datasets


@real_data
def test_imdb_is_complete_and_balanced(pretrained):
    task = imdb.build(imdb.Config(name="imdb", limit=Limit(test=50)), Path(str(REAL)), pretrained)
    assert len(task.train_labels()) == 22500
    assert task.reference_loss() == pytest.approx(log(2), abs=1e-4)
    assert {example.label for example in task.examples("test")} == {0, 1}
    assert task.max_length == max(example.length for example in task.examples("test")) == 64
