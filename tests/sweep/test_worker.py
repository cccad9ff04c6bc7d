"""Workers in this process, with sources that do nothing but behave in a certain way."""

from __future__ import annotations

import errno
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import BaseStorage
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from cudt.sweep import shared, worker
from cudt.sweep.lease import Lease
from cudt.sweep.messages import CellProgress, CellResult
from cudt.sweep.queue import Trial
from cudt.sweep.shared import LostTrialError, SharedStorage
from cudt.sweep.source import Report
from cudt.sweep.storage import open_storage, own_storage
from cudt.sweep.worker import DONE, RESTART, STOPPED, work
from cudt.utils.errors import (
    DataWarning,
    MachineFaultError,
    TrainingInterruptedError,
    TrainingStoppedError,
    UserError,
)
from cudt.utils.interrupt import StopRequest
from tests.sweep.test_queue import Words, spent, states


class Source:
    """Cells whose runs call a function with the cell's name and the report callback."""

    def __init__(self, storage: BaseStorage, run: Callable[[str, Report], Any], *words: str) -> None:
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
    assert (first.state, first.score, first.facts["updates"], first.facts["deaths"]) == ("finished", 0.5, 3, 0)


def test_sources_are_taken_in_the_order_of_the_moment(storage, tmp_path):
    order: list[str] = []
    one = Source(storage, lambda word, report: order.append(word), "a", "b")
    two = Source(open_storage(f"sqlite:///{tmp_path}/two.db"), lambda word, report: order.append(word), "c", "d")
    assert work(lambda: sorted([one, two], key=lambda source: source.queue.n_begun)) == DONE
    assert order == ["a", "c", "b", "d"]


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

    assert work(lambda: [Source(storage, fail, "a")], on_failure=lambda: failures.append("one")) == code
    (trial,) = Words(storage, "a").trials()
    assert (trial.state, trial.facts["reason"], trial.facts["run"]) == ("failed", reason, "runs/a")
    assert failures == ["one"]
    assert ("Traceback" in capfd.readouterr().err) == (code == RESTART)


def test_nothing_is_started_once_it_is_closed(storage):
    source = Source(storage, lambda word, report: None, "a", "b")
    assert work(lambda: [source], is_closed=lambda: source.queue.n_begun == 1) == DONE
    assert states(source.queue) == {"a": "finished", "b": "waiting"}


@pytest.mark.parametrize("error", [TrainingInterruptedError("saved"), KeyboardInterrupt()], ids=["saved", "at once"])
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
    assert work(lambda: [Source(storage, lambda *_: os.kill(os.getpid(), signal.SIGTERM), "a")]) == STOPPED
    assert states(Words(storage, "a")) == {"a": "waiting"}
    assert signal.getsignal(signal.SIGTERM) == before


def test_progress_and_warnings_about_data_are_stored_for_those_who_watch(storage):
    seen: list[Trial] = []

    def run(word: str, report: Report) -> None:
        report(CellProgress(3, 6, 0.25))
        warnings.warn("a clip is skipped", DataWarning, stacklevel=1)
        seen.extend(Words(storage, "a").trials())

    work(lambda: [Source(storage, run, "a")])
    (trial,) = seen
    assert trial.progress.pop("seconds") >= 0
    progress = {"step": 3, "steps": 6, "loss": 0.25, "unit": "update"}
    assert (trial.progress, trial.warnings) == (progress, ("a clip is skipped",))


def test_a_worker_whose_trial_was_taken_writes_nothing_more(storage, tmp_path, capfd):
    """A machine that slept through the grace period wakes up while another one runs its trial."""
    other = Words(open_storage(own_storage(tmp_path)), "a")

    def sleep(word: str, report: Report) -> None:
        (mine,) = other.trials()
        assert other.give_back(mine, spent(1), "without a sign of life")
        assert other.next() is not None

    assert work(lambda: [Source(storage, sleep, "a")], is_closed=lambda: other.n_begun == 1) == RESTART
    (trial,) = other.trials()
    assert (trial.state, trial.facts["deaths"]) == ("running", 1)
    assert "another worker has taken this trial over" in capfd.readouterr().err


def test_training_ends_at_its_next_update_once_the_trial_was_taken(storage, tmp_path):
    other, updates = Words(open_storage(own_storage(tmp_path)), "a"), []

    def train(word: str, report: Report) -> None:
        (mine,) = other.trials()
        other.give_back(mine, spent(1), "without a sign of life")
        assert other.next() is not None
        storage.record_heartbeat(mine.trial_id)
        updates.append("one")
        with pytest.raises(LostTrialError):
            report(CellProgress(1, 6, None))
        raise LostTrialError

    assert work(lambda: [Source(storage, train, "a")], is_closed=lambda: bool(updates)) == RESTART


def test_training_saves_and_stops_before_others_may_take_a_trial_that_it_cannot_renew(storage, monkeypatch):
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


def test_a_server_that_is_away_when_a_trial_ends_is_waited_for(storage, monkeypatch, caplog):
    """The trial would have failed without a reason, and its cell been drawn again."""
    away: list[str] = []
    original = storage._transaction

    def missing() -> Any:
        if len(away) < 3:
            away.append("away")
            raise OperationalError("BEGIN", {}, Exception("connection refused"))
        return original()

    def run(word: str, report: Report) -> None:
        # The heartbeat's thread is not the one that ends the trial.
        monkeypatch.setattr(storage, "record_heartbeat", lambda trial_id: None)
        monkeypatch.setattr(storage, "_transaction", missing)

    assert work(lambda: [Source(storage, run, "a")]) == DONE
    assert len(away) == 3
    (trial,) = Words(storage, "a").trials()
    assert (trial.number, trial.state, trial.facts["updates"]) == (0, "finished", 3)


def test_a_trial_costs_few_transactions(storage):
    """Each costs a wait for the disk, and the lock of the whole file."""
    commits: list[str] = []
    event.listen(storage.engine, "commit", lambda connection: commits.append("one"))
    counts = []

    def run(word: str, report: Report) -> None:
        counts.append(len(commits))

    source = Source(storage, run, "a", "b", "c")
    assert work(lambda: [source]) == DONE
    # Between the starts of two trials, by hand: get_trial and the end of one; reading all trials; the start of the
    # next, its parameter, and reading it.
    assert counts[2] - counts[1] <= 10


def test_a_result_whose_storing_is_interrupted_is_not_lost(storage, monkeypatch):
    """Somebody presses Ctrl-C while the worker waits for a server that is away."""
    original = storage._end
    pressed: list[str] = []

    def interrupted(*arguments: Any) -> Any:
        if not pressed:
            pressed.append("Ctrl-C")
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(storage, "_end", interrupted)
    assert work(lambda: [Source(storage, lambda *_: None, "a")]) == STOPPED
    assert states(Words(storage, "a")) == {"a": "waiting"}
    assert ran(storage, "a") == ["a"]
    assert [trial.number for trial in Words(storage, "a").trials()] == [0]


def test_a_storage_that_is_away_for_too_long_is_no_failure_of_the_cell(storage, capfd):
    def run(word: str, report: Report) -> None:
        raise OperationalError("SELECT", {}, Exception("connection refused"))

    assert work(lambda: [Source(storage, run, "a")]) == RESTART
    (trial,) = Words(storage, "a").trials()
    assert (trial.number, trial.state, trial.facts["deaths"]) == (0, "waiting", 0)
    assert "the storage was away for too long" in capfd.readouterr().err


def test_an_error_of_cudt_ends_the_worker_and_leaves_the_trial_to_its_parent(storage):
    class Broken(Source):
        def facts(self, trial: Trial) -> dict[str, Any]:
            raise ZeroDivisionError

    def fail(word: str, report: Report) -> None:
        raise UserError("not allowed")

    with pytest.raises(ZeroDivisionError):
        work(lambda: [Broken(storage, fail, "a")])
    assert states(Words(storage, "a")) == {"a": "running"}


def test_training_saves_nothing_once_others_may_have_taken_the_trial(storage, monkeypatch):
    """A report that comes after the grace period: a checkpoint would be written into the folder of another worker."""
    moment = time.monotonic

    def train(word: str, report: Report) -> None:
        with StopRequest() as stop, monkeypatch.context() as patch:
            patch.setattr("cudt.sweep.shared.time.monotonic", lambda: moment() + 6.5 * 20)
            with pytest.raises(LostTrialError):
                report(CellProgress(2, 6, None))
            assert not stop.requested
        raise LostTrialError

    assert work(lambda: [Source(storage, train, "a")]) == RESTART


def test_the_heartbeat_survives_errors(storage, monkeypatch, caplog):
    (trial,) = [Words(storage, "a").next()]
    assert trial is not None

    def broken(*_: Any) -> None:
        raise OSError("the server is away")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_transaction", broken)
        storage.record_heartbeat(trial.trial_id)
    assert "no heartbeat for trial" in caplog.text
    assert not storage.was_lost(trial.trial_id)
