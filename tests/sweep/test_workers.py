from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudt.sweep import workers as processes
from cudt.sweep.workers import Died, Done, Failed, Interrupted, Message, Note, Progress, Workers

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hire(tmp_path):
    """Workers that do what they are told; gone at the end of the test."""
    hired: list[Workers] = []

    def some(*environments: dict[str, str], do: str = "tests.sweep.planted:obey") -> Workers:
        hired.append(Workers(environments or [{}], tmp_path / "logs", do))
        return hired[-1]

    yield some
    for one in hired:
        one.__exit__()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def told(workers: Workers) -> list[tuple[Any, Message]]:
    """Everything until nobody is at work."""
    found = []
    while workers.is_busy:
        found += [(key, message) for key, _, message in workers.wait(timeout=30)]
    return found


def told_of(workers: Workers, job: Any) -> list[Message]:
    workers.start("cell", job)
    return [message for _, message in told(workers)]


def number_of(workers: Workers) -> int:
    """The worker's process, as it tells it."""
    (message,) = told_of(workers, "look")
    assert isinstance(message, Done)
    return message.outcome["process"]


def test_a_job_is_done_and_the_worker_stays_for_the_next(hire):
    workers = hire()
    assert workers.has_room
    workers.start("first", "sing")
    assert not workers.has_room
    assert told(workers) == [("first", Done("sing"))]
    assert workers.has_room
    assert number_of(workers) == number_of(workers) != os.getpid()


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("fail", "it cannot be done"),
        ("stop", "the loss is not finite"),
        ("stumble", "ZeroDivisionError: by nought"),
    ],
)
def test_a_job_that_fails_tells_why_and_another_worker_takes_the_next(word, reason, hire, tmp_path):
    workers = hire()
    before = number_of(workers)
    assert told_of(workers, word) == [Failed(reason)]
    # Only what nobody expected leaves a trace.
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert ("Traceback" in log) == (word == "stumble")
    assert number_of(workers) != before


@pytest.mark.parametrize(
    ("word", "how"), [("exit", "with exit code 7"), ("be killed", "by signal 9 (SIGKILL)")], ids=["exit", "kill"]
)
def test_a_worker_that_dies_is_told_and_replaced(word, how, hire, tmp_path):
    workers = hire()
    before = number_of(workers)
    assert told_of(workers, word) == [Died(f"{how}; see {tmp_path / 'logs' / 'worker-1.log'}")]
    assert number_of(workers) != before


def test_a_worker_that_dies_between_two_jobs_is_replaced(hire):
    workers = hire()
    before = number_of(workers)
    os.kill(before, signal.SIGKILL)
    # It may be noticed when the job is given, or when it is not answered.
    messages = told_of(workers, "look")
    if isinstance(messages[0], Died):
        messages = told_of(workers, "look")
    assert isinstance(messages[0], Done)
    assert messages[0].outcome["process"] != before


def test_what_cannot_be_imported_is_a_death_with_a_trace(hire, tmp_path):
    (message,) = told_of(hire(do="tests.sweep.planted:nowhere"), "sing")
    assert isinstance(message, Died)
    assert message.how.startswith("with exit code 1")
    assert "nowhere" in (tmp_path / "logs" / "worker-1.log").read_text()


def test_workers_that_are_asked_to_stop_save_and_end(hire, tmp_path):
    workers = hire({}, {})
    for key in ("first", "second"):
        workers.start(key, ("wait", tmp_path))
    until(lambda: len(list(tmp_path.glob("at-work-*"))) == 2)
    workers.stop()
    until(lambda: len(list(tmp_path.glob("saving-*"))) == 2)
    # They are asked once alone: a second signal would end them at once.
    workers.stop()
    (tmp_path / "go").touch()
    assert sorted(told(workers), key=str) == [("first", Interrupted()), ("second", Interrupted())]


def test_a_worker_that_is_stopped_before_it_can_listen_has_died(hire):
    workers = hire()
    workers.start("cell", "sing")
    workers.stop()
    ((_, message),) = told(workers)
    assert isinstance(message, Died)
    assert "SIGTERM" in message.how


def test_what_is_in_the_environment_is_there_before_the_job_is_imported(hire, monkeypatch):
    monkeypatch.setenv("PLANTED", "ours")
    workers = hire({"PLANTED": "one", "OMP_NUM_THREADS": "3"}, {"PLANTED": "two"})
    for key in (1, 2):
        workers.start(key, "look")
    found = dict(told(workers))
    outcomes = {key: message.outcome for key, message in found.items() if isinstance(message, Done)}
    assert {outcome["PLANTED"] for outcome in outcomes.values()} == {"one", "two"}
    assert all(outcome["at import"] == outcome["PLANTED"] for outcome in outcomes.values())
    assert outcomes[1]["OMP_NUM_THREADS"] == "3"
    # Ctrl-C is for the process group in the foreground.
    assert os.getpgid(0) not in {outcome["group"] for outcome in outcomes.values()}
    assert os.environ["PLANTED"] == "ours"


def test_warnings_about_data_are_passed_on_and_others_go_to_the_log(hire, tmp_path):
    assert told_of(hire(), "warn") == [Note("a clip is left out"), Done("warn")]
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert "of a library" in log
    assert "left out" not in log


def test_what_is_printed_goes_to_a_log_for_each_worker(hire, tmp_path, capfd):
    workers = hire({}, {})
    for key, word in ((1, "sing"), (2, "dance")):
        workers.start(key, word)
    told(workers)
    logs = [(tmp_path / "logs" / f"worker-{number}.log").read_text() for number in (1, 2)]
    assert logs == ["was told to sing\n", "was told to dance\n"]
    assert capfd.readouterr() == ("", "")


def test_progress_is_told_with_the_last_layers_loss(hire):
    assert told_of(hire(), "tell") == [Progress(3, 9, 0.4), Done("tell")]


def test_progress_is_not_told_all_the_time(monkeypatch):
    sent: list[Any] = []
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reporter = processes.Reporter(type("Pipe", (), {"send": lambda self, message: sent.append(message)})())
    view = type("View", (), {"step": 1, "steps": 2, "train_losses": {}, "validation_losses": [0.7, 0.5]})()
    for _ in range(1000):
        now[0] += 0.01
        reporter.update(view)
        reporter.epoch_ended(view, "accuracy 1")
    assert set(sent) == {Progress(1, 2, 0.5)}
    assert 10 <= len(sent) <= 40


def test_the_seconds_of_a_job_are_told(hire, tmp_path):
    workers = hire()
    workers.start("cell", ("wait", tmp_path))
    until(lambda: list(tmp_path.glob("at-work-*")))
    time.sleep(0.2)
    (tmp_path / "go").touch()
    ((_, seconds, _),) = list(workers.wait(timeout=30))
    assert 0.2 < seconds < 30


def test_workers_without_a_job_end_with_the_sweep_and_those_with_one_are_ended(tmp_path):
    with Workers([{}, {}], tmp_path / "logs", "tests.sweep.planted:obey") as workers:
        idle = number_of(workers)
        for key in (1, 2):
            workers.start(key, ("wait", tmp_path))
        until(lambda: len(list(tmp_path.glob("at-work-*"))) == 2)
        (tmp_path / "go").touch()
        told(workers)
        (tmp_path / "go").unlink()
        workers.start(3, ("wait", tmp_path))
        numbers = {int(path.name.split("-")[-1]) for path in tmp_path.glob("at-work-*")}
    assert idle in numbers
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_ctrl_c_for_the_whole_group_does_not_reach_workers(tmp_path):
    command = [sys.executable, "-m", "tests.sweep.planted", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, text=True)
    until(lambda: list(tmp_path.glob("at-work-*")))
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output == "Done(outcome='undisturbed')\n"
    assert process.returncode == 0


def test_workers_of_a_process_that_is_killed_end_by_themselves(tmp_path):
    command = [sys.executable, "-m", "tests.sweep.planted", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT)
    until(lambda: list(tmp_path.glob("at-work-*")))
    (worker,) = (int(path.name.split("-")[-1]) for path in tmp_path.glob("at-work-*"))
    os.kill(worker, 0)
    process.kill()
    process.wait()
    # It is asked to save, and may take its time.
    until((tmp_path / f"saving-{worker}").exists)
    (tmp_path / "go").touch()

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    until(is_gone)
    assert process.returncode == -signal.SIGKILL
    assert is_gone()
