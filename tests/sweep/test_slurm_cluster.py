"""Jobs on a real Slurm cluster of one node, where one is installed."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from cudt.sweep import slurm
from cudt.sweep.slurm_options import parse_slurm
from cudt.utils.errors import UserError
from tests.sweep.searches import FIXED, grid, write_search
from tests.sweep.slurm_server import output, slurm_cluster, until

pytest.importorskip("submitit", reason="the extra cudt[slurm] is not installed")

#: A worker of a job of an array. On SIGTERM it saves, which takes a while, and the next one ends by itself.
WORKER = """
import os, pathlib, signal, sys, time
index = os.environ["SLURM_ARRAY_TASK_ID"]
saved = pathlib.Path("saved-" + index)
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
pathlib.Path("began-" + index).touch()
while not saved.exists():
    time.sleep(0.05)
    if asked:
        time.sleep(1)
        saved.touch()
        sys.exit(130)
print("finished", len(os.sched_getaffinity(0)))
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with slurm_cluster(tmp_path / "slurm"):
        yield


def state(job: str) -> str:
    return output("squeue", "--noheader", f"--jobs={job}", "--format=%T")


def test_stopped_jobs_are_requeued_and_a_cancelled_one_is_not(cluster, tmp_path):
    command = [sys.executable, "-c", WORKER]
    array = slurm.submit(command, 3, parse_slurm("time=10,cpus-per-task=1"), Path("logs"), "cudt")
    at_limit, cancelled, preempted = (f"{array.job_id}_{index}" for index in range(3))
    until(lambda: len(list(Path.cwd().glob("began-*"))) == 3)
    output("scancel", "--signal=USR2", at_limit)  # what Slurm sends before the time limit
    output("scancel", "--signal=TERM", preempted)  # and on pre-emption, when the grace period begins
    output("scancel", cancelled)
    until(lambda: [state(job) for job in (at_limit, cancelled, preempted)] == ["PENDING", "", "PENDING"])
    assert len(list(Path.cwd().glob("saved-*"))) == 3
    for job in (at_limit, preempted):
        # Slurm lets requeued jobs wait for two minutes.
        output("scontrol", "update", f"jobid={job}", "starttime=now")
    logs = [tmp_path / "logs" / f"{job}_0_log.out" for job in (at_limit, cancelled, preempted)]
    until(lambda: ["finished" in log.read_text() for log in logs] == [True, False, True])


def test_what_sbatch_refuses_is_an_error_with_its_reason(cluster):
    with pytest.raises(UserError, match=r"^sbatch refused the jobs: invalid partition specified: gpuu; Batch job"):
        slurm.submit(["true"], 2, parse_slurm("time=10,partition=gpuu"), Path("logs"), "cudt")


def trials(out: Path) -> dict[float, tuple[str, float, int]]:
    """State, score and updates of every trial, by the searched α."""
    (path,) = out.rglob("trials_wide.csv")
    table = pd.read_csv(path)
    assert not table["descent.alpha"].duplicated().any()
    return {row["descent.alpha"]: (row["state"], row["score"], row["updates"]) for _, row in table.iterrows()}


@pytest.mark.slow
def test_a_sweep_as_jobs_that_are_stopped_gives_one_workers_results(cluster, postgres_url, tmp_path, monkeypatch):
    # A requeued job is not missed for two minutes.
    monkeypatch.setenv("CUDT_HEARTBEAT", "5")
    alphas = [0.1, 0.2, 0.3, 0.4]
    fixed = {**FIXED, "task.train": 960, "training.epochs": 10}
    search = write_search(tmp_path, arms={"constrained": grid({"descent.alpha": alphas})}, fixed=fixed)
    sweep = [sys.executable, "-m", "cudt", "sweep", "--search", str(search), "--device", "cpu"]
    jobs = ["--workers", "2", "--storage", postgres_url, "--launcher", "slurm", "--slurm", "time=30"]
    said = output(*sweep, "--out", "jobs", *jobs)
    array = said.partition("job array ")[2].split()[0]
    until(lambda: list(Path("jobs").rglob("history.csv")), 120)
    output("scancel", "--signal=USR2", f"{array}_1")
    until(lambda: state(f"{array}_1") == "PENDING")
    output("scontrol", "update", f"jobid={array}_1", "starttime=now")
    output("scontrol", "requeue", f"{array}_0")  # as if its node had failed
    until(lambda: state(f"{array}_0") == "PENDING")
    output("scontrol", "update", f"jobid={array}_0", "starttime=now")
    until(lambda: not output("squeue", "--noheader"), 300)
    assert list(Path("jobs").rglob(f"logs/{socket.gethostname()}/worker-1.log"))
    output(*sweep, "--out", "one")
    assert trials(Path("jobs")) == trials(Path("one"))
    assert [found[0] for found in trials(Path("jobs")).values()] == ["finished"] * len(alphas)
