"""Cells that any number of workers share."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from cudt.sweep import recovery
from cudt.sweep.definition import Parameters
from cudt.sweep.queue import MAX_DEATHS, Key, Trial, TrialQueue
from cudt.sweep.storage import open_storage, own_storage
from tests.sweep.searches import fail, finish


class Words(TrialQueue):
    """Cells with names, and nothing to draw."""

    def __init__(self, storage: BaseStorage, *words: str) -> None:
        super().__init__(storage, "words")
        self.words = words

    def cells(self) -> Iterable[tuple[Key, Parameters]]:
        return [(word, {"word": word}) for word in self.words]

    def describe(self, trial: Trial) -> str:
        return str(trial.cell)


@pytest.fixture
def storage(tmp_path: Path) -> BaseStorage:
    return open_storage(own_storage(tmp_path))


def states(queue: TrialQueue) -> dict[Key, str]:
    return {trial.cell: trial.state for trial in queue.trials()}


def spent(deaths: int) -> dict[str, float]:
    return {"seconds": 1.5, "deaths": deaths}


def test_cells_are_taken_in_order_and_each_once(storage):
    one, two = Words(storage, "a", "b", "c"), Words(storage, "a", "b", "c")
    taken = [one.next(), two.next(), one.next(), two.next()]
    assert [trial and (trial.cell, trial.parameters) for trial in taken] == [
        ("a", {"word": "a"}),
        ("b", {"word": "b"}),
        ("c", {"word": "c"}),
        None,
    ]


def test_cells_that_several_enqueue_at_once_count_once(storage, tmp_path):
    barrier = threading.Barrier(4)

    def enqueue() -> None:
        queue = Words(open_storage(own_storage(tmp_path)), "a", "b")
        queue.refresh()
        barrier.wait()
        for cell, parameters in queue.cells():
            queue.study.enqueue_trial(parameters, user_attrs={"cell": cell})

    threads = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue = Words(storage, "a", "b")
    assert len(queue.study.trials) == 8
    taken = list(iter(queue.next, None))
    assert sorted(str(trial.cell) for trial in taken) == ["a", "b"]
    for trial in taken:
        finish(queue, trial, 1.0, {})
    assert queue.next() is None
    assert (states(queue), queue.left) == ({"a": "finished", "b": "finished"}, 0)
    assert [trial.state for trial in queue.study.trials].count(TrialState.COMPLETE) == 2


def test_two_workers_never_start_one_trial(storage, tmp_path):
    words = [f"word {number}" for number in range(12)]
    Words(storage, *words).top_up()
    barrier = threading.Barrier(3)
    taken: list[Key] = []

    def take() -> None:
        queue = Words(open_storage(own_storage(tmp_path)), *words)
        barrier.wait()
        taken.extend(trial.cell for trial in iter(queue.next, None))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, taken)) == sorted(words)


def test_what_is_given_back_is_next_with_what_it_has_spent(storage):
    queue = Words(storage, "a", "b")
    first = queue.next()
    assert first is not None
    assert queue.give_back(first, spent(0))
    again = queue.next()
    assert again is not None
    assert (again.number, again.facts) == (first.number, {"seconds": 1.5, "deaths": 0})
    assert again.holder is not None
    assert first.holder is not None
    assert again.holder["token"] != first.holder["token"]


def test_a_trial_is_given_back_once_by_whoever_finds_its_worker_dead(storage):
    queue = Words(storage, "a")
    first = queue.next()
    assert first is not None
    assert queue.give_back(first, spent(1), "by signal 9")
    again = queue.next()
    # Another process found the same dead worker, and was slow.
    assert not queue.give_back(first, spent(1), "by signal 9")
    assert states(queue) == {"a": "running"}
    assert again is not None
    assert again.facts == {"seconds": 1.5, "deaths": 1, "died": "by signal 9"}


def test_a_cell_fails_after_too_many_deaths(storage):
    queue = Words(storage, "a")
    for deaths in range(1, MAX_DEATHS + 1):
        trial = queue.next()
        assert trial is not None
        assert queue.give_back(trial, spent(deaths), "by signal 9", {"run": "here"})
    (found,) = queue.trials()
    reason = "5 workers died while running it, the last one by signal 9"
    assert (found.state, found.facts) == (
        "failed",
        {"run": "here", "seconds": 1.5, "deaths": 5, "reason": reason},
    )
    assert queue.next() is None


def test_a_cell_that_makes_progress_between_deaths_does_not_fail(storage):
    """A long run on nodes that are pre-empted."""
    source = SimpleNamespace(queue=Words(storage, "a"), facts=lambda trial: {})
    for step in range(2 * MAX_DEATHS):
        trial = source.queue.next()
        assert trial is not None
        storage.set_trial_user_attr(
            trial.trial_id, "progress", {"step": 10 * step + 10, "steps": 900, "seconds": 1.0}
        )
        (trial,) = source.queue.trials()
        assert recovery.give_back(source, trial, "by signal 9")
    assert states(source.queue) == {"a": "waiting"}
    for _ in range(MAX_DEATHS - 1):
        trial = source.queue.next()
        assert trial is not None
        assert recovery.give_back(source, trial, "by signal 9")
    (trial,) = source.queue.trials()
    assert (trial.state, trial.facts["deaths"]) == ("failed", 3 * MAX_DEATHS - 1)


def test_failed_cells_are_tried_again_once_though_two_ask_for_it(storage):
    queue = Words(storage, "a")
    trial = queue.next()
    assert trial is not None
    fail(queue, trial, "no", {})
    one, two = Words(storage, "a"), Words(storage, "a")
    one.refresh()
    again = {"cell": "a", "retry_of": trial.number}
    for queue in (one, two):
        queue.study.enqueue_trial({"word": "a"}, user_attrs=again)
    taken = one.next()
    assert taken is not None
    finish(one, taken, 1.0, {})
    assert two.next() is None
    assert states(two) == {"a": "finished"}


def test_waiting_cells_that_are_no_longer_wanted_are_ended(storage):
    queue = Words(storage, "a", "b")
    queue.top_up()
    smaller = Words(storage, "a")
    smaller.drop_surplus()
    assert [trial.state for trial in queue.study.trials] == [TrialState.WAITING, TrialState.FAIL]
    # A larger budget later adds them again.
    assert [trial.cell for trial in iter(Words(storage, "a", "b").next, None)] == ["a", "b"]
