"""Which examples share a batch, and loading them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cudt.data.loader import (
    TOKEN_COUNTS,
    Loader,
    batches,
    n_batches,
    shared,
    split_updates,
    updates,
)

CPU = torch.device("cpu")
LENGTHS = np.random.default_rng(9).integers(1, 500, 1000)
GROUPS = [[4, 0], [2], [1, 3, 5], [5, 5]]


class Numbers:
    """A task whose examples are numbers, which are also their lengths."""

    @staticmethod
    def length(number: int) -> int:
        return number

    @staticmethod
    def collate(numbers: Sequence[int]) -> dict[str, Any]:
        mask = (torch.arange(max(numbers) + 1) <= torch.tensor(numbers).unsqueeze(1)).long()
        return {"ids": list(numbers), "attention_mask": mask, "process": os.getpid()}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("size", [1, 32, 1001])
def test_an_epoch_uses_each_example_at_most_once_in_full_updates(lengths, size):
    epoch = updates(1000, size, rng(), lengths)
    assert epoch.shape == (1000 // size, size)
    assert len(set(epoch.flatten().tolist())) == epoch.size
    assert set(epoch.flatten().tolist()) <= set(range(1000))
    assert np.array_equal(updates(1000, size, rng(), lengths), epoch)
    if lengths is None:
        assert epoch.flatten().tolist() == rng().permutation(1000)[: epoch.size].tolist()


def test_grouped_updates_have_little_padding_and_are_not_sorted_by_length():
    def padding(epoch: np.ndarray) -> int:
        return int((LENGTHS[epoch].max(1, keepdims=True) - LENGTHS[epoch]).sum())

    # 1000 lengths sorted into 31 updates: each spans about 500/31 of them instead of nearly 500.
    grouped = updates(1000, 32, rng(), LENGTHS.tolist())
    assert padding(grouped) < 0.1 * padding(updates(1000, 32, rng()))
    ranks = LENGTHS[grouped].max(1).argsort().argsort()
    assert abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) < 0.4


def test_processes_and_micro_batches_share_each_update():
    epoch = updates(100, 12, rng())
    parts = [split_updates(epoch, 2, process, 3) for process in range(3)]
    assert [len(part) for part in parts] == [16] * 3
    for number, update in enumerate(epoch):
        mine = [part[2 * number + half] for part in parts for half in range(2)]
        assert sorted(np.concatenate(mine).tolist()) == sorted(update.tolist())


@pytest.mark.parametrize("size", [1, 3, 100])
def test_every_example_is_in_one_batch_longest_first(size):
    examples = [3, 1, 4, 1, 5, 9, 2]
    groups = [batch["ids"] for batch in batches(Numbers(), examples, size, CPU)]
    assert [one for group in groups for one in group] == sorted(examples, reverse=True)
    assert len(groups) == n_batches(examples, size)


def test_shares_are_of_one_size_and_cover_everything():
    shares = [shared("abcdefg", (process, 3)) for process in range(3)]
    assert shares == [["a", "d", "g"], ["b", "e", "g"], ["c", "f", "g"]]
    assert shared([], (0, 2)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_and_draw_nothing_from_the_global_generator(workers):
    before = torch.get_rng_state()
    loader = Loader(Numbers(), range(6), CPU, workers)
    first = list(loader.load(GROUPS))
    assert [batch["ids"] for batch in first] == GROUPS
    again = list(loader.load(GROUPS[1:2]))
    assert [batch["ids"] for batch in again] == GROUPS[1:2]
    # Workers stay from pass to pass, and are other processes.
    processes = {batch["process"] for batch in first}
    assert {batch["process"] for batch in again} <= processes
    assert (os.getpid() in processes) == (workers == 0)
    assert torch.equal(torch.get_rng_state(), before)
    # Lengths are counted before tensors are moved.
    assert first[2][TOKEN_COUNTS] == [2, 4, 6]
