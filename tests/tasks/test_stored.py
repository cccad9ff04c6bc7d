from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from cudt.data.stored_examples import Kind, StoredExample, read_examples, write_examples
from cudt.tasks.stored import Config, Stored, build
from cudt.tasks.token_logits import DenseLogits
from cudt.utils.errors import UserError


def example(tokens: list[int], labels: list[int], **others: list[int]) -> StoredExample:
    inputs = {"input_ids": np.array(tokens), **{name: np.array(values) for name, values in others.items()}}
    return StoredExample("", inputs, np.array(labels))


EXAMPLES: dict[Kind, list[StoredExample]] = {
    "sequence": [example([5, 6, 7], [0], token_type_ids=[0, 1, 1]), example([8], [2], token_type_ids=[0])],
    "tokens": [example([5, 6, 7], [1, -100, 2]), example([8, 9], [-100, 1])],
    "causal": [example([5, 6, 7, 6], [-100, -100, 7, 6]), example([8, 6], [8, 6])],
    "image": [
        StoredExample("", {"pixel_values": np.arange(12, dtype=np.float32).reshape(3, 2, 2) / 7}, np.array([label]))
        for label in (0, 1)
    ],
}


def task_of(folder: Path, kind: Kind, **settings: Any) -> Stored:
    for split in ("train", "validation"):
        write_examples(folder / f"{split}.parquet", EXAMPLES[kind], kind)
    classes = None if kind == "causal" else 3
    config = Config(name="stored", folder=str(folder), kind=kind, classes=classes, **settings)
    return build(config, None, None)


@pytest.mark.parametrize("kind", [*EXAMPLES])
def test_examples_come_back_as_they_were_stored(kind, tmp_path):
    found = task_of(tmp_path, kind).examples("train")
    assert [one.id for one in found] == ["train-0", "train-1"]
    for one, expected in zip(found, EXAMPLES[kind], strict=True):
        assert one.inputs.keys() == expected.inputs.keys()
        for name, values in one.inputs.items():
            assert np.array_equal(values, expected.inputs[name])
        assert one.labels.tolist() == expected.labels.tolist()


def test_a_batch_of_classes_is_padded(tmp_path):
    task = task_of(tmp_path, "sequence", pad=4)
    batch = task.collate(task.examples("train"))
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 4, 4]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 1], [0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [0, 2]
    assert task.weights(batch).tolist() == [1, 1]


def test_the_label_of_a_causal_position_is_the_next_token(tmp_path):
    task = task_of(tmp_path, "causal")
    batch = task.collate(task.examples("train"))
    assert batch["labels"].tolist() == [[-100, 7, 6, -100], [6, -100, -100, -100]]
    assert batch["labelled"].tolist() == [1, 2, 4]
    assert task.weights(batch).tolist() == [2, 1]


def test_losses_and_scores_of_tokens_count_the_labelled_ones(tmp_path):
    task = task_of(tmp_path, "tokens")
    batch = task.collate(task.examples("train"))
    logits = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.double)
    # Labels 1 and 2 of the first example, 1 of the second.
    losses, scores = task.judge(DenseLogits(logits), batch)
    first = [math.log(2 + math.e**2) - 2, math.log(math.e + 2)]
    assert losses.tolist() == pytest.approx([sum(first) / 2, math.log(math.e + 2) - 1])
    assert scores.tolist() == [0.5, 1]
    assert task.losses(DenseLogits(logits), batch).tolist() == losses.tolist()


@pytest.mark.parametrize(
    ("kind", "shares"), [("sequence", [0.5, 0.5]), ("tokens", [2 / 3, 1 / 3]), ("causal", [2 / 3, 1 / 3])]
)
def test_the_reference_is_the_entropy_of_the_labels(kind, shares, tmp_path):
    expected = -sum(share * math.log(share) for share in shares)
    assert task_of(tmp_path, kind).reference_loss() == pytest.approx(expected)


def test_some_labels_of_each_example_are_drawn(tmp_path):
    task = task_of(tmp_path, "causal")
    batch = task.collate(task.examples("train"))
    thinned = task.thinned(batch, 1, "seed")
    assert (thinned["labels"] != -100).sum(1).tolist() == [1, 1]
    kept = thinned["labels"] != -100
    assert thinned["labels"][kept].tolist() == batch["labels"][kept].tolist()
    assert thinned["labelled"].tolist() == kept.flatten().nonzero().squeeze(1).tolist()
    assert task.thinned(batch, 9, "seed")["labels"].tolist() == batch["labels"].tolist()


def test_the_fingerprint_is_that_of_the_data(tmp_path):
    first = task_of(tmp_path / "a", "tokens")
    second = task_of(tmp_path / "b", "tokens")
    assert first.fingerprint(["train"]) == second.fingerprint(["train"])
    changed = [EXAMPLES["tokens"][0], example([8, 9], [-100, 2])]
    write_examples(tmp_path / "b" / "validation.parquet", changed, "tokens")
    third = build(Config(name="stored", folder=str(tmp_path / "b"), kind="tokens", classes=3), None, None)
    assert third.fingerprint(["train"]) == first.fingerprint(["train"])
    assert third.fingerprint(["validation"]) != first.fingerprint(["validation"])


def test_test_data_are_read_when_they_are_asked_for(tmp_path):
    task = task_of(tmp_path, "sequence", limit={"train": 1})
    assert len(task.examples("train")) == 1
    with pytest.raises(UserError, match="so the run cannot be tested; give its trainer a test_dataset"):
        task.examples("test")
    write_examples(tmp_path / "test.parquet", EXAMPLES["sequence"], "sequence")
    assert len(task.examples("test")) == 2


def test_many_examples_are_written_in_parts(tmp_path):
    rows = [example([5 + number % 30] * (1 + number % 4), [number % 3]) for number in range(2500)]
    assert write_examples(tmp_path / "many.parquet", iter(rows), "sequence") == 2500
    found = read_examples(tmp_path / "many.parquet", "train", "sequence", 3)
    assert [one.inputs["input_ids"].tolist() for one in found] == [one.inputs["input_ids"].tolist() for one in rows]


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        ({"labels": [0]}, "sequence", "no column 'input_ids', which examples of kind sequence have"),
        ({"input_ids": [[5]], "labels": [3]}, "sequence", "row 1: a label is not a number from 0 to 2"),
        ({"input_ids": [[5]], "labels": [-100]}, "sequence", "row 1: a label is not a number from 0 to 2"),
        ({"input_ids": [[5], [5]], "labels": [0, 0.5]}, "sequence", "row 1: column 'labels': expected integers"),
        ({"input_ids": [[5], []], "labels": [0, 0]}, "sequence", "row 2: an example has at least one token"),
        ({"input_ids": [[-1]], "labels": [0]}, "sequence", "row 1: an example has at least one token"),
        ({"input_ids": [["a"]], "labels": [0]}, "sequence", "column 'input_ids': expected numbers or lists of numbers"),
        ({"input_ids": [None], "labels": [0]}, "sequence", "column 'input_ids': expected numbers or lists of numbers"),
        ({"input_ids": [[5], None], "labels": [0, 0]}, "sequence", "column 'input_ids': a number is missing"),
        ({"input_ids": [[5, None]], "labels": [0]}, "sequence", "column 'input_ids': a number is missing"),
        ({"input_ids": [[5, 6]], "labels": [[1]]}, "tokens", "row 1: 1 labels, expected 2"),
        ({"input_ids": [[5]], "labels": [[0, 1]]}, "sequence", "row 1: 2 labels, expected 1"),
        (
            {"input_ids": [[5, 6]], "token_type_ids": [[0]], "labels": [0]},
            "sequence",
            "row 1: column 'token_type_ids' has 1 numbers, and input_ids 2",
        ),
        ({"pixel_values": [[1.0]], "shape": [[3, 2, 2]], "labels": [0]}, "image", "row 1: 1 numbers are no image"),
        ({"pixel_values": [[math.nan]], "shape": [[1, 1, 1]], "labels": [0]}, "image", "row 1: the image has NaN"),
        ({"input_ids": pa.array([], pa.list_(pa.int64())), "labels": pa.array([], pa.int64())}, "sequence", "no examp"),
    ],
)
def test_damaged_data_are_refused_in_one_line(columns, kind, message, tmp_path):
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=message) as raised:
        read_examples(tmp_path / "train.parquet", "train", kind, 3)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_parquet_is_refused_in_one_line(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UserError, match="not a valid parquet file"):
        read_examples(tmp_path / "train.parquet", "train", "sequence", 3)
    with pytest.raises(UserError, match="does not exist"):
        read_examples(tmp_path / "validation.parquet", "validation", "sequence", 3)


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"task.folder: 'nowhere' does not exist below"):
        build(Config(name="stored", folder="nowhere", kind="causal"), tmp_path, None)


@pytest.mark.parametrize(("kind", "classes", "message"), [("causal", 3, "remove classes"), ("tokens", None, "needs")])
def test_only_classes_are_counted(kind, classes, message):
    with pytest.raises(ValidationError, match=message):
        Config(name="stored", folder="data", kind=kind, classes=classes)
