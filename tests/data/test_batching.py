from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cudt.data.loader import n_batches, to_device, updates
from cudt.data.loader import batches

CPU = torch.device("cpu")


class Words:
    """The part of a task that batching needs: an example is a word with its length."""

    @staticmethod
    def length(word: str) -> int:
        return len(word)

    @staticmethod
    def collate(words: Sequence[str]) -> dict[str, Any]:
        return {"ids": list(words), "lengths": torch.tensor([len(word) for word in words])}


WORDS = ["a", "dddd", "bb", "eeeee", "b2", "ccc", "a2a2a2a"]


def made(examples: Sequence[str], size: int) -> list[list[str]]:
    return [batch["ids"] for batch in batches(Words(), examples, size, CPU)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ---------------------------------------------------------------- evaluation


def test_batches_start_with_the_longest_and_keep_the_order_of_equal_lengths():
    assert made(WORDS, 3) == [["a2a2a2a", "eeeee", "dddd"], ["ccc", "bb", "b2"], ["a"]]


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 100])
def test_every_example_is_in_one_batch(size):
    groups = made(WORDS, size)
    assert sorted(word for group in groups for word in group) == sorted(WORDS)
    assert len(groups) == n_batches(WORDS, size)
    assert all(len(group) == size for group in groups[:-1])


def test_only_tensors_are_moved():
    batch: dict[str, Any] = {"ids": ["a"], "x": torch.ones(2)}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"].device.type == "meta"
    assert moved["ids"] is batch["ids"]
    assert batch["x"].device.type == "cpu"


# ---------------------------------------------------------------- training


LENGTHS = rng(9).integers(1, 500, 1000)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("size", [1, 7, 32, 1000])
def test_an_epoch_uses_each_example_at_most_once_in_full_updates(lengths, size):
    epoch = updates(1000, size, rng(), lengths)
    assert epoch.shape == (1000 // size, size)
    assert len(set(epoch.flatten().tolist())) == epoch.size
    assert set(epoch.flatten().tolist()) <= set(range(1000))


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_the_order_depends_only_on_the_seed(lengths):
    first = updates(1000, 32, rng(), lengths)
    np.random.seed(5)
    assert np.array_equal(
        updates(1000, 32, rng(), None if lengths is None else lengths.tolist()), first
    )
    assert not np.array_equal(updates(1000, 32, rng(1), lengths), first)


def test_without_lengths_updates_are_slices_of_one_permutation():
    order = rng().permutation(100)
    assert updates(100, 32, rng()).tolist() == [
        order[start : start + 32].tolist() for start in (0, 32, 64)
    ]


def padding(epoch: np.ndarray[Any, Any]) -> int:
    return int((LENGTHS[epoch].max(1, keepdims=True) - LENGTHS[epoch]).sum())


def test_grouped_updates_have_little_padding():
    # 1000 lengths sorted into 31 updates: each spans about 500/31 of them instead of nearly 500.
    assert padding(updates(1000, 32, rng(), LENGTHS.tolist())) < 0.1 * padding(
        updates(1000, 32, rng())
    )


def test_grouped_updates_are_not_sorted_by_length():
    longest = LENGTHS[updates(1000, 32, rng(), LENGTHS.tolist())].max(1)
    ranks = longest.argsort().argsort()
    assert abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) < 0.4


def test_a_pool_has_fifty_updates_so_that_each_epoch_groups_other_examples():
    epoch = updates(400, 2, rng(), range(400))
    order = rng().permutation(400)
    pools = [set(order[start : start + 100].tolist()) for start in range(0, 400, 100)]
    assert all(any(set(pair) <= pool for pool in pools) for pair in epoch.tolist())
    assert {frozenset(pair) for pair in epoch.tolist()} != {
        frozenset((i, i + 1)) for i in range(0, 400, 2)
    }


@pytest.mark.parametrize("lengths", [None, [3, 1, 2]])
def test_too_few_examples_give_no_update(lengths):
    assert updates(3, 4, rng(), lengths).shape == (0, 4)
