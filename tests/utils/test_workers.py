from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cudt.utils.workers import (
    Died,
    Done,
    Failed,
    Interrupted,
    Message,
    Reported,
    Warned,
    Workers,
)
from tests.utils.worker_jobs import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hire(tmp_path):
    """Start pools of workers that end with the test."""
    hired: list[Workers] = []

    def some(*environments: dict[str, str], function: str = "tests.utils.worker_jobs:obey") -> Workers:
        hired.append(Workers(environments or [{}], tmp_path / "logs", function))
        return hired[-1]

    yield some
    for one in hired:
        one.__exit__()


def messages_of(workers: Workers) -> list[tuple[Any, Message]]:
    """All messages until no worker is busy."""
    found = []
    while workers.is_busy:
        found += [(key, message) for key, _, message in workers.wait(timeout=30)]
    return found


def run_job(workers: Workers, job: Any) -> list[Message]:
    workers.start("cell", job)
    return [message for _, message in messages_of(workers)]


def number_of(workers: Workers) -> int:
    """The process id of the worker."""
    (message,) = run_job(workers, "look")
    assert isinstance(message, Done)
    return message.result["process"]


def test_a_job_is_done_and_the_worker_stays_for_the_next(hire):
    workers = hire()
    assert workers.has_room
    workers.start("first", "sing")
    assert not workers.has_room
    assert messages_of(workers) == [("first", Done("sing"))]
    assert workers.has_room
    assert number_of(workers) == number_of(workers) != os.getpid()


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("fail", "a user error"),
        ("stop", "the loss is not finite"),
        ("crash", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_failed_job_gives_its_reason_and_another_worker_takes_the_next(word, reason, hire, tmp_path):
    workers = hire()
    before = number_of(workers)
    assert run_job(workers, word) == [Failed(reason)]
    # Only unexpected errors leave a traceback.
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert ("Traceback" in log) == (word == "crash")
    assert number_of(workers) != before


@pytest.mark.parametrize(
    ("word", "how"), [("exit", "with exit code 7"), ("be killed", "by signal 9 (SIGKILL)")], ids=["exit", "kill"]
)
def test_a_worker_that_dies_is_reported_and_replaced(word, how, hire, tmp_path):
    workers = hire()
    before = number_of(workers)
    assert run_job(workers, word) == [Died(f"{how}; see {tmp_path / 'logs' / 'worker-1.log'}")]
    assert number_of(workers) != before


def test_a_worker_that_dies_between_two_jobs_is_replaced(hire):
    workers = hire()
    before = number_of(workers)
    os.kill(before, signal.SIGKILL)
    # It is noticed when the job is sent, or when no answer comes.
    messages = run_job(workers, "look")
    if isinstance(messages[0], Died):
        messages = run_job(workers, "look")
    assert isinstance(messages[0], Done)
    assert messages[0].result["process"] != before


def test_a_function_that_cannot_be_imported_kills_the_worker_with_a_traceback(hire, tmp_path):
    (message,) = run_job(hire(function="tests.utils.worker_jobs:nowhere"), "sing")
    assert isinstance(message, Died)
    assert message.how.startswith("with exit code 1")
    assert "nowhere" in (tmp_path / "logs" / "worker-1.log").read_text()


def test_workers_that_are_asked_to_stop_save_and_end(hire, tmp_path):
    workers = hire({}, {})
    for key in ("first", "second"):
        workers.start(key, ("wait", tmp_path))
    until(lambda: len(list(tmp_path.glob("running-*"))) == 2)
    workers.stop()
    until(lambda: len(list(tmp_path.glob("saving-*"))) == 2)
    # They are asked only once: a second signal would kill them.
    workers.stop()
    (tmp_path / "go").touch()
    assert sorted(messages_of(workers), key=str) == [("first", Interrupted()), ("second", Interrupted())]


def test_a_worker_that_is_stopped_while_it_starts_has_died(hire):
    workers = hire()
    workers.start("cell", "sing")
    workers.stop()
    ((_, message),) = messages_of(workers)
    assert isinstance(message, Died)
    assert "SIGTERM" in message.how


def test_the_environment_is_set_before_the_function_is_imported(hire, monkeypatch):
    monkeypatch.setenv("PLANTED", "ours")
    workers = hire({"PLANTED": "one", "OMP_NUM_THREADS": "3"}, {"PLANTED": "two"})
    for key in (1, 2):
        workers.start(key, "look")
    found = dict(messages_of(workers))
    results = {key: message.result for key, message in found.items() if isinstance(message, Done)}
    assert {result["PLANTED"] for result in results.values()} == {"one", "two"}
    assert all(result["at import"] == result["PLANTED"] for result in results.values())
    assert results[1]["OMP_NUM_THREADS"] == "3"
    # Ctrl-C goes to the process group in the foreground.
    assert os.getpgid(0) not in {result["group"] for result in results.values()}
    assert os.environ["PLANTED"] == "ours"


def test_warnings_about_data_are_sent_and_others_go_to_the_log(hire, tmp_path):
    assert run_job(hire(), "warn") == [Warned("a clip is skipped"), Done("warn")]
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert "from a library" in log
    assert "skipped" not in log


def test_output_goes_to_a_log_for_each_worker(hire, tmp_path, capfd):
    workers = hire({}, {})
    for key, word in ((1, "sing"), (2, "dance")):
        workers.start(key, word)
    messages_of(workers)
    logs = [(tmp_path / "logs" / f"worker-{number}.log").read_text() for number in (1, 2)]
    assert logs == ["job: sing\n", "job: dance\n"]
    assert capfd.readouterr() == ("", "")


def test_a_job_can_report_values_while_it_runs(hire):
    assert run_job(hire(), "report") == [Reported({"step": 3}), Done("report")]


def test_the_seconds_of_a_job_are_measured(hire, tmp_path):
    workers = hire()
    workers.start("cell", ("wait", tmp_path))
    until(lambda: list(tmp_path.glob("running-*")))
    time.sleep(0.2)
    (tmp_path / "go").touch()
    ((_, seconds, _),) = list(workers.wait(timeout=30))
    assert 0.2 < seconds < 30


def test_leaving_the_pool_ends_idle_and_busy_workers(tmp_path):
    with Workers([{}, {}], tmp_path / "logs", "tests.utils.worker_jobs:obey") as workers:
        idle = number_of(workers)
        for key in (1, 2):
            workers.start(key, ("wait", tmp_path))
        until(lambda: len(list(tmp_path.glob("running-*"))) == 2)
        (tmp_path / "go").touch()
        messages_of(workers)
        (tmp_path / "go").unlink()
        workers.start(3, ("wait", tmp_path))
        numbers = {int(path.name.split("-")[-1]) for path in tmp_path.glob("running-*")}
    assert idle in numbers
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_ctrl_c_for_the_whole_group_does_not_reach_workers(tmp_path):
    command = [sys.executable, "-m", "tests.utils.worker_jobs", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, text=True)
    until(lambda: list(tmp_path.glob("running-*")))
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output == "Done(result='not interrupted')\n"
    assert process.returncode == 0


def test_workers_of_a_process_that_is_killed_end_by_themselves(tmp_path):
    command = [sys.executable, "-m", "tests.utils.worker_jobs", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT)
    until(lambda: list(tmp_path.glob("running-*")))
    (worker,) = (int(path.name.split("-")[-1]) for path in tmp_path.glob("running-*"))
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
