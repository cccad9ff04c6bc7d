from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from cudt.sweep import lease as leases
from cudt.sweep.lease import STUDY, Lease, home_of
from cudt.sweep.queue import Trial
from cudt.sweep.shared import LostTrialError
from cudt.sweep.storage import open_storage, own_storage
from tests.sweep.test_queue import Words, spent


@pytest.fixture
def storage(tmp_path: Path, monkeypatch) -> BaseStorage:
    monkeypatch.setattr(leases, "_INTERVAL", 0.05)
    return open_storage(own_storage(tmp_path))


def started(storage: BaseStorage, number: int) -> list[Trial]:
    """Trials that this process runs."""
    queue = Words(storage, *(f"word {one}" for one in range(number)))
    return list(iter(queue.next, None))


def test_the_second_waits_until_the_first_has_ended(storage, tmp_path):
    one, two = started(storage, 2)
    order, is_waiting = [], threading.Event()

    def second() -> None:
        is_waiting.set()
        with Lease(open_storage(own_storage(tmp_path)), two.trial_id).of("run"):
            order.append("second")

    with Lease(storage, one.trial_id).of("run"):
        thread = threading.Thread(target=second)
        thread.start()
        is_waiting.wait()
        time.sleep(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_other_runs_are_not_waited_for(storage):
    one, two = started(storage, 2)
    with Lease(storage, one.trial_id).of("run"), Lease(storage, two.trial_id).of("another"):
        pass


def test_the_lease_of_a_worker_that_lost_its_trial_ends_with_it(storage):
    one, two = started(storage, 2)
    queue = Words(storage, "word 0", "word 1")
    with Lease(storage, one.trial_id).of("run"):
        # Its heartbeats stopped, and somebody gave its trial back.
        assert queue.give_back(one, spent(1), "without a sign of life")
        with Lease(storage, two.trial_id).of("run"):
            pass
    # All tickets have ended, so that nobody reads them again.
    tickets = storage.get_all_trials(storage.get_study_id_from_name(STUDY))
    assert [ticket.state for ticket in tickets] == [TrialState.FAIL, TrialState.FAIL]


def test_whoever_loses_its_trial_while_it_waits_does_not_begin(storage):
    (one,) = started(storage, 1)
    queue = Words(storage, "word 0")
    lease = Lease(storage, one.trial_id)
    original = lease._is_behind

    def given_back(*arguments) -> bool:
        queue.give_back(one, spent(1), "without a sign of life")
        return original(*arguments)

    object.__setattr__(lease, "_is_behind", given_back)
    with pytest.raises(LostTrialError), lease.of("run"):
        raise AssertionError("began")


def test_a_folder_has_one_home_and_another_folder_another(tmp_path):
    home = home_of(tmp_path / "out")
    assert home_of(tmp_path / "out") == home
    assert home_of(tmp_path / "other") != home
    assert (tmp_path / "out" / ".cudt-home").read_text() == home
