from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from cudt.sweep import keeper as keepers
from cudt.sweep.keeper import Keeper
from cudt.sweep.study import ArmStudy
from cudt.utils.errors import UserError
from tests.sweep.searches import study_of, sweep_of


@pytest.fixture
def arm_study(tmp_path) -> ArmStudy:
    return study_of(sweep_of(tmp_path))


@pytest.fixture
def other_process():
    """The number of a process that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def keeper_was(study: ArmStudy, process: int, host: str | None = None, ago: float = 0.0) -> None:
    seen = {"host": host or socket.gethostname(), "process": process, "seen": time.time() - ago}
    study.study.set_user_attr("keeper", seen)


def test_a_second_sweep_is_refused_while_the_first_lives(arm_study, other_process):
    keeper_was(arm_study, other_process)
    with (
        pytest.raises(UserError, match=rf"another `cudt sweep` is using .*process {other_process} on "),
        Keeper(arm_study),
    ):
        pass
    # Whoever was refused leaves the other's sign of life alone.
    assert arm_study.study.user_attrs["keeper"]["process"] == other_process


def test_the_place_of_a_dead_process_is_taken(arm_study):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    keeper_was(arm_study, gone.pid)
    with Keeper(arm_study):
        assert arm_study.study.user_attrs["keeper"]["process"] == os.getpid()


def test_the_place_of_a_process_that_has_been_silent_is_taken(arm_study, other_process):
    keeper_was(arm_study, other_process, ago=keepers._TIMEOUT + 1)
    with Keeper(arm_study):
        assert arm_study.study.user_attrs["keeper"]["process"] == os.getpid()


def test_the_place_of_another_machine_is_taken_after_silence_alone(arm_study):
    keeper_was(arm_study, 2**22 + 1, host="elsewhere", ago=keepers._TIMEOUT - 5)
    with pytest.raises(UserError, match="on elsewhere"), Keeper(arm_study):
        pass
    keeper_was(arm_study, 2**22 + 1, host="elsewhere", ago=keepers._TIMEOUT + 5)
    with Keeper(arm_study):
        pass


def test_the_lock_is_released_at_the_end(arm_study, other_process):
    with pytest.raises(RuntimeError), Keeper(arm_study):
        raise RuntimeError
    assert arm_study.study.user_attrs["keeper"] is None
    with Keeper(arm_study):
        pass


def test_a_keeper_shows_signs_of_life_often_enough_and_not_always(arm_study, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0])
    seen = set()
    with Keeper(arm_study) as keeper:
        for now[0] in range(1000, 1200):
            keeper.beat()
            seen.add(arm_study.study.user_attrs["keeper"]["seen"])
    ordered = sorted(seen)
    gaps = [later - earlier for earlier, later in pairwise(ordered)]
    assert min(gaps) > 5
    assert max(gaps) < keepers._TIMEOUT / 3
