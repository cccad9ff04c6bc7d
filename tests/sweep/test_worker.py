"""Workers in this process, with sources that do nothing but behave in a certain way."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import BaseStorage

from cudt.sweep import shared, worker
from cudt.sweep.lease import Lease
from cudt.sweep.messages import CellProgress, CellResult
from cudt.sweep.queue import Trial
from cudt.sweep.shared import SharedStorage
from cudt.sweep.source import Report
from cudt.sweep.storage import open_storage, own_storage
from cudt.sweep.worker import DONE, RESTART, STOPPED, work
from cudt.utils.errors import (
    MachineFaultError,
    StopRequest,
    TrainingInterruptedError,
    TrainingStoppedError,
    UserError,
)
from tests.sweep.test_queue import Words, spent, states


class Source:
    """Cells whose runs call a function with the cell's name and the report callback."""

    def __init__(
        self, storage: BaseStorage, run: Callable[[str, Report], Any], *words: str
    ) -> None:
        self.queue = Words(storage, *words)
        self._run = run

    def run(self, trial: Trial, report: Report, lease: Lease) -> CellResult:
        self._run(str(trial.cell), report)
        return CellResult(0.5, {"updates": 3})

    def facts(self, trial: Trial) -> dict[str, Any]:
        return {"run": f"runs/{trial.cell}"}


@pytest.fixture
def storage(tmp_path: Path, monkeypatch) -> SharedStorage:
    monkeypatch.setattr(worker, "_PROGRESS_INTERVAL", 0.0)
    monkeypatch.setattr(shared, "_FRESH", 0.0)
    opened = open_storage(own_storage(tmp_path))
    assert isinstance(opened, SharedStorage)
    return opened


def ran(storage: BaseStorage, *words: str) -> list[str]:
    order: list[str] = []
    assert work(lambda: [Source(storage, lambda word, report: order.append(word), *words)]) == DONE
    return order


def test_every_cell_is_run_once_in_order(storage):
    assert ran(storage, "a", "b", "c") == ["a", "b", "c"]
    assert ran(storage, "a", "b", "c", "d") == ["d"]
    (first, *_) = Words(storage, "a", "b", "c", "d").trials()
    assert (first.state, first.score, first.facts["updates"], first.facts["deaths"]) == (
        "finished",
        0.5,
        3,
        0,
    )


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (UserError("not\nallowed"), DONE, "not\nallowed"),
        (TrainingStoppedError("the loss is not finite"), DONE, "the loss is not finite"),
        # Memory, or a GPU, may be in any state.
        (ZeroDivisionError("division"), RESTART, "ZeroDivisionError: division"),
    ],
)
def test_a_failure_is_recorded_with_its_reason(error, code, reason, storage, capfd):
    failures: list[str] = []

    def fail(word: str, report: Report) -> None:
        raise error

    assert (
        work(lambda: [Source(storage, fail, "a")], on_failure=lambda: failures.append("one"))
        == code
    )
    (trial,) = Words(storage, "a").trials()
    assert (trial.state, trial.facts["reason"], trial.facts["run"]) == ("failed", reason, "runs/a")
    assert failures == ["one"]
    assert ("Traceback" in capfd.readouterr().err) == (code == RESTART)


@pytest.mark.parametrize(
    "error", [TrainingInterruptedError("saved"), KeyboardInterrupt()], ids=["saved", "at once"]
)
def test_an_interrupted_cell_waits_again_and_is_no_death(error, storage):
    def stop(word: str, report: Report) -> None:
        raise error

    assert work(lambda: [Source(storage, stop, "a", "b")]) == STOPPED
    first, _ = Words(storage, "a", "b").trials()
    assert (first.state, first.facts["deaths"]) == ("waiting", 0)
    assert ran(storage, "a", "b") == ["a", "b"]


FAULTS = {
    "disk": OSError(errno.ENOSPC, "No space left on device", "out/run.json"),
    "said": MachineFaultError("the storage is away"),
}


@pytest.mark.parametrize("error", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_machine_gives_the_cell_back_with_nothing_spent(error, storage):
    failures: list[str] = []

    def meet(word: str, report: Report) -> None:
        report(CellProgress(3, 6, 0.25))
        time.sleep(0.2)
        raise error

    with pytest.raises(MachineFaultError) as raised:
        work(lambda: [Source(storage, meet, "a", "b")], on_failure=lambda: failures.append("one"))
    assert str(raised.value) == str(error)
    first, _ = Words(storage, "a", "b").trials()
    assert (first.state, first.holder, failures) == ("waiting", None, [])
    assert {key: first.facts[key] for key in ("seconds", "deaths")} == {"seconds": 0.0, "deaths": 0}
    assert ran(storage, "a", "b") == ["a", "b"]


def test_a_full_disk_never_fails_a_cell(storage):
    def fill(word: str, report: Report) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "out/run.json")

    for _ in range(3):
        with pytest.raises(MachineFaultError):
            work(lambda: [Source(storage, fill, "a")])
    assert states(Words(storage, "a")) == {"a": "waiting"}


def test_sigterm_stops_a_worker_wherever_it_is(storage):
    before = signal.getsignal(signal.SIGTERM)
    assert (
        work(lambda: [Source(storage, lambda *_: os.kill(os.getpid(), signal.SIGTERM), "a")])
        == STOPPED
    )
    assert states(Words(storage, "a")) == {"a": "waiting"}
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_worker_whose_trial_was_taken_writes_nothing_more(storage, tmp_path, capfd):
    """A machine that slept through the grace period wakes up while another one runs its trial."""
    other = Words(open_storage(own_storage(tmp_path)), "a")

    def sleep(word: str, report: Report) -> None:
        (mine,) = other.trials()
        assert other.give_back(mine, spent(1), "without a sign of life")
        assert other.next() is not None

    assert (
        work(lambda: [Source(storage, sleep, "a")], is_closed=lambda: other.n_begun == 1) == RESTART
    )
    (trial,) = other.trials()
    assert (trial.state, trial.facts["deaths"]) == ("running", 1)
    assert "another worker has taken this trial over" in capfd.readouterr().err


def test_training_saves_and_stops_before_others_may_take_a_trial_that_it_cannot_renew(
    storage, monkeypatch
):
    monkeypatch.setenv("CUDT_HEARTBEAT", "1")
    saved: list[str] = []
    moment = time.monotonic

    def train(word: str, report: Report) -> None:
        if saved:
            return
        with StopRequest() as stop:
            report(CellProgress(1, 6, None))
            assert not stop.requested
            # The database is out of reach: no heartbeat arrives for four seconds.
            monkeypatch.setattr("cudt.sweep.shared.time.monotonic", lambda: moment() + 4.5)
            report(CellProgress(2, 6, None))
            assert stop.requested
        monkeypatch.setattr("cudt.sweep.shared.time.monotonic", moment)
        saved.append("saved")
        raise TrainingInterruptedError("saved")

    assert work(lambda: [Source(storage, train, "a")]) == RESTART
    assert saved == ["saved"]
    assert states(Words(storage, "a")) == {"a": "waiting"}


def test_an_error_of_cudt_ends_the_worker_and_leaves_the_trial_to_its_parent(storage):
    class Broken(Source):
        def facts(self, trial: Trial) -> dict[str, Any]:
            raise ZeroDivisionError

    def fail(word: str, report: Report) -> None:
        raise UserError("not allowed")

    with pytest.raises(ZeroDivisionError):
        work(lambda: [Broken(storage, fail, "a")])
    assert states(Words(storage, "a")) == {"a": "running"}
