"""Loading batches: the same batches with any number of workers, in order, ahead of a device."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from cudt.data.loader import lengths_of
from cudt.data.loader import AHEAD, Loader, ahead
from cudt.utils.errors import UserError

#: Meta tensors have no values, and stand for those on an accelerator.
CPU, DEVICE = torch.device("cpu"), torch.device("meta")
GROUPS = [[4, 0], [2], [1, 3, 5], [5, 5]]


class Numbers:
    """A task whose examples are numbers; a batch tells which process collated it."""

    @staticmethod
    def length(number: int) -> int:
        return number

    @staticmethod
    def collate(numbers: Sequence[int]) -> dict[str, Any]:
        mask = (torch.arange(max(numbers) + 1) <= torch.tensor(numbers).unsqueeze(1)).long()
        return {
            "ids": [str(number) for number in numbers],
            "attention_mask": mask,
            "process": [os.getpid()],
        }


def ids(loaded) -> list[list[str]]:
    return [batch["ids"] for batch in loaded]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_and_again_with_other_groups(workers):
    loader = Loader(Numbers(), range(6), CPU, workers)
    assert ids(loader.load(GROUPS)) == [["4", "0"], ["2"], ["1", "3", "5"], ["5", "5"]]
    assert ids(loader.load(GROUPS[1:2])) == [["2"]]
    assert ids(loader.load([])) == []


def test_workers_collate_and_stay_from_pass_to_pass():
    def processes(loader: Loader) -> set[int]:
        return {batch["process"][0] for batch in loader.load(GROUPS)}

    loader = Loader(Numbers(), range(6), CPU, 2)
    first = processes(loader)
    assert os.getpid() not in first
    assert first == processes(loader)
    assert processes(Loader(Numbers(), range(6), CPU)) == {os.getpid()}


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_draws_nothing_from_the_global_generator(workers):
    before = torch.get_rng_state()
    list(Loader(Numbers(), range(6), CPU, workers).load(GROUPS))
    assert torch.equal(torch.get_rng_state(), before)


def test_lengths_are_counted_before_the_batch_is_copied():
    class Named(Numbers):
        """A task that has `lengths` of its own."""

        @staticmethod
        def collate(numbers: Sequence[int]) -> dict[str, Any]:
            return {**Numbers.collate(numbers), "lengths": torch.zeros(len(numbers))}

    assert [lengths_of(batch) for batch in Loader(Named(), range(6), CPU).load(GROUPS)] == [
        [5, 1],
        [3],
        [2, 4, 6],
        [6, 6],
    ]
    (batch,) = Loader(Named(), range(6), CPU).load([[1, 2]])
    assert torch.equal(batch["lengths"], torch.zeros(2))
    (batch,) = Loader(Named(), range(6), DEVICE, 0).load([[1, 2]])
    assert lengths_of(batch) == [2, 3]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_for_the_user_is_the_same_from_a_worker(workers, device):
    class Broken(Numbers):
        @staticmethod
        def collate(numbers: Sequence[int]) -> dict[str, Any]:
            raise UserError(f"frame {numbers[0]} is missing")

    with pytest.raises(UserError) as caught:
        list(Loader(Broken(), range(6), torch.device(device), workers).load(GROUPS))
    assert str(caught.value) == "frame 4 is missing"


def test_the_next_batch_is_copied_before_this_one_is_used():
    made: list[int] = []

    class Noted(Numbers):
        @staticmethod
        def collate(numbers: Sequence[int]) -> dict[str, Any]:
            made.append(len(made))
            return Numbers.collate(numbers)

    for device, expected in ((CPU, [1, 2, 3, 4]), (DEVICE, [2, 3, 4, 4])):
        made.clear()
        assert [len(made) for _ in Loader(Noted(), range(6), device, 0).load(GROUPS)] == expected


def test_threads_prepare_items_ahead_for_a_device_only():
    asked: list[int] = []
    prepared: list[tuple[int, bool]] = []
    together = threading.Barrier(AHEAD, timeout=10)

    def items():
        for item in range(AHEAD + 2):
            assert threading.current_thread() is threading.main_thread()
            asked.append(item)
            yield item

    def prepare(item: int) -> int:
        prepared.append((item, threading.current_thread() is threading.main_thread()))
        if 0 < item <= AHEAD and not prepared[-1][1]:
            # Broken, unless all are prepared at the same time.
            together.wait()
        return 10 * item

    in_turn = ahead(items(), prepare, CPU)
    assert next(in_turn) == 0
    assert prepared == [(0, True)]
    prepared.clear()
    asked.clear()
    made = ahead(items(), prepare, DEVICE)
    assert next(made) == 0
    assert asked == [*range(AHEAD + 1)]
    assert list(made) == [10 * item for item in range(1, AHEAD + 2)]
    assert not any(is_main for _, is_main in prepared)


def test_an_error_in_the_thread_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        list(ahead([1, 0], lambda item: 1 // item, DEVICE))
