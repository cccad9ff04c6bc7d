from __future__ import annotations

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
