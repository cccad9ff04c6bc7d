from __future__ import annotations

import os

import pytest
import torch

from cudt.utils import worker_processes
from cudt.utils.worker_processes import FAULT, Ended, Processes, worker_environments
from tests.utils.process_jobs import until


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch) -> None:
    monkeypatch.setattr(worker_processes, "_GRACE_PERIOD", 1.0)


@pytest.fixture
def hire(tmp_path):
    """Start workers that end with the test."""
    hired: list[Processes] = []

    def some(
        argument, *environments: dict[str, str], function: str = "tests.utils.process_jobs:obey"
    ) -> Processes:
        hired.append(Processes(environments or [{}], tmp_path / "logs", function, argument))
        return hired[-1].__enter__()

    yield some
    for one in hired:
        one.__exit__()


def end_of(workers: Processes) -> Ended:
    """How the only worker ends."""
    (ended,) = list(workers.wait(30))
    return ended


@pytest.mark.parametrize(
    ("word", "code", "how"),
    [
        ("done", 0, "with exit code 0"),
        ("code", 75, "with exit code 75"),
        ("crash", 1, "with exit code 1"),
        ("exit", 7, "with exit code 7"),
        ("be killed", -9, "by signal 9 (SIGKILL)"),
    ],
)
def test_the_end_of_a_worker_is_reported(word, code, how, hire, tmp_path):
    workers = hire(word)
    ended = end_of(workers)
    log = tmp_path / "logs" / "worker-1.log"
    assert (ended.worker, ended.code, ended.how) == (0, code, f"{how}; see {log}")
    assert workers.n_running == 0
    # What it printed, and the traceback of what it did not expect.
    assert f"job: {word}" in log.read_text()
    assert ("Traceback" in log.read_text()) == (word == "crash")


def test_a_fault_of_the_machine_is_said_without_the_log(hire):
    ended = end_of(hire("fault"))
    assert ended.code == FAULT
    assert ended.fault == "[Errno 28] x: 'ood.csv'"
    assert end_of(hire("crash")).fault is None


def test_workers_are_asked_once_to_stop_and_then_save(hire, tmp_path):
    workers = hire(("wait", tmp_path), {}, {})
    until(lambda: len(list(tmp_path.glob("running-*"))) == 2)
    workers.stop()
    until(lambda: len(list(tmp_path.glob("saving-*"))) == 2)
    # A second signal would kill them.
    workers.stop()
    (tmp_path / "go").touch()
    ended: list[Ended] = []
    while workers.n_running:
        ended += workers.wait(10)
    assert [one.code for one in ended] == [130, 130]


def test_the_environment_is_set_before_the_function_is_imported(hire, monkeypatch, tmp_path):
    monkeypatch.setenv("PLANTED", "ours")
    end_of(hire("look", {"PLANTED": "one"}))
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert "at import: one" in log
    # Ctrl-C goes to the process group in the foreground.
    assert f"group: {os.getpgid(0)}\n" not in log
    assert os.environ["PLANTED"] == "ours"


# ---------------------------------------------------------------- sharing the machine


def test_workers_share_the_cores_unless_the_number_of_threads_is_set(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for workers, share in ((1, "8"), (3, "2"), (20, "1")):
        assert worker_environments(workers, "cpu") == [{"OMP_NUM_THREADS": share}] * workers
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert worker_environments(2, "cpu") == [{"OMP_NUM_THREADS": "5"}] * 2


@pytest.mark.parametrize(("visible", "given"), [("", ["0", "1", "0"]), ("4,7", ["4", "7", "4"])])
def test_workers_get_one_visible_gpu_each(visible, given, monkeypatch):
    monkeypatch.setattr("cudt.utils.device.accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = [one["CUDA_VISIBLE_DEVICES"] for one in worker_environments(3, "auto")]
    assert found == given
    assert "CUDA_VISIBLE_DEVICES" not in worker_environments(1, "cpu")[0]
