from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from cudt.sweep import lease as leases
from cudt.sweep.lease import Lease, home_of
from cudt.sweep.queue import Trial
from cudt.sweep.shared import LostTrialError, SharedStorage
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


def leased(storage, trial) -> str:
    """The run that a trial uses."""
    return storage.get_trial(trial.trial_id).user_attrs["lease"]


def test_the_second_waits_until_the_trial_of_the_first_has_ended(storage, tmp_path, monkeypatch):
    one, two = started(storage, 2)
    Lease(storage, one.trial_id).take("run")
    other = open_storage(own_storage(tmp_path))
    assert isinstance(other, SharedStorage)
    looks, reserve = [], other.reserve

    def watched(*given) -> bool:
        looks.append(reserve(*given))
        return looks[-1]

    monkeypatch.setattr(other, "reserve", watched)
    thread = threading.Thread(target=Lease(other, two.trial_id).take, args=("run",))
    thread.start()
    while len(looks) < 3 and thread.is_alive():
        time.sleep(0.01)
    assert looks[:3] == [False, False, False]
    storage.set_trial_state_values(one.trial_id, TrialState.COMPLETE, [0.5])
    thread.join()
    assert looks[-1]


def test_other_runs_are_not_waited_for(storage):
    one, two = started(storage, 2)
    Lease(storage, one.trial_id).take("run")
    Lease(storage, two.trial_id).take("another")
    assert [leased(storage, trial) for trial in (one, two)] == ["run", "another"]


def test_a_worker_does_not_wait_for_itself(storage):
    """The answer to a commit may be lost; the second attempt finds what the first one wrote."""
    (one,) = started(storage, 1)
    Lease(storage, one.trial_id).take("run")
    Lease(storage, one.trial_id).take("run")
    assert leased(storage, one) == "run"


def test_the_lease_of_a_worker_that_lost_its_trial_ends_with_it(storage):
    one, two = started(storage, 2)
    queue = Words(storage, "word 0", "word 1")
    Lease(storage, one.trial_id).take("run")
    # Its heartbeats stopped, and somebody gave its trial back.
    assert queue.give_back(one, spent(1), "without a sign of life")
    Lease(storage, two.trial_id).take("run")


def test_whoever_loses_its_trial_while_it_waits_does_not_begin(storage):
    one, two = started(storage, 2)
    queue = Words(storage, "word 0", "word 1")
    Lease(storage, two.trial_id).take("run")

    def ends() -> None:
        time.sleep(0.2)
        queue.give_back(one, spent(1), "without a sign of life")
        queue.give_back(two, spent(1), "without a sign of life")

    thread = threading.Thread(target=ends)
    thread.start()
    with pytest.raises(LostTrialError):
        Lease(storage, one.trial_id).take("run")
    thread.join()


def test_a_folder_has_one_home_and_another_folder_another(tmp_path):
    home = home_of(tmp_path / "out")
    assert home_of(tmp_path / "out") == home
    assert home_of(tmp_path / "other") != home
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".cudt-home"]
    assert (tmp_path / "out" / ".cudt-home").read_text() == home


@pytest.mark.parametrize("links", [True, False])
def test_a_folder_whose_id_a_killed_process_did_not_write_gets_one(tmp_path, monkeypatch, links):
    monkeypatch.setattr(leases, "_PATIENCE", 0.0)
    if not links:
        monkeypatch.setattr(os, "link", lambda *given: (tmp_path / "none").stat())
    (tmp_path / ".cudt-home").touch()
    assert len(home_of(tmp_path)) == 32
    assert home_of(tmp_path) == (tmp_path / ".cudt-home").read_text()
