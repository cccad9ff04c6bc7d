from __future__ import annotations

import torch

from cudt.tasks.base import IGNORED
from cudt.tasks.labelled import Labelled, positions

_ = IGNORED
LABELS = torch.tensor([[_, 3, 5], [_, _, _], [7, _, 9]])


def test_positions_are_those_of_the_batch_or_found_in_its_labels():
    assert positions({"labels": LABELS}).tolist() == [1, 2, 6, 8]
    assert positions({"labels": LABELS, "labelled": torch.tensor([1, 8])}).tolist() == [1, 8]


def test_targets_rows_and_counts():
    labelled = Labelled.of({"labels": LABELS})
    assert labelled.targets.tolist() == [3, 5, 7, 9]
    assert labelled.rows.tolist() == [0, 0, 2, 2]
    assert labelled.counts.tolist() == [2, 0, 2]


def test_means_of_examples_and_the_weights_of_tokens_in_them():
    labelled = Labelled.of({"labels": LABELS})
    assert labelled.means(torch.tensor([1.0, 2.0, 3.0, 5.0])).tolist() == [1.5, 0, 4]
    values, weights = torch.randn(4, requires_grad=True), torch.tensor([3.0, 5.0, 8.0])
    (labelled.means(values) @ weights).backward()
    assert values.grad is not None
    assert labelled.by_token(weights).tolist() == values.grad.tolist() == [1.5, 1.5, 4, 4]
