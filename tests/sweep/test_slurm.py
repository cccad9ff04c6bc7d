from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.scale.postgres import PASSWORD
from cudt.sweep import slurm, stored
from cudt.sweep.slurm_job import JobWorker
from cudt.sweep.slurm_options import parse_slurm
from cudt.utils.errors import UserError
from tests.sweep.searches import write_search
from tests.sweep.slurm_cluster import Cluster

pytest.importorskip("submitit", reason="the extra cudt[slurm] is not installed")

#: A worker that says when it began; on SIGTERM it saves and ends as interrupted, and the next one ends by itself.
WORKER = """
import pathlib, signal, sys, time
saved = pathlib.Path("saved")
def save(*_):
    saved.write_text("half")
    sys.exit(130)
signal.signal(signal.SIGTERM, save)
pathlib.Path("began").touch()
while not saved.exists():
    time.sleep(0.02)
print("finished from", saved.read_text())
"""
#: Code of the job's process that sends it SIGTERM before the worker starts.
STOPPED_EARLY = """
import signal, subprocess
class Popen(subprocess.Popen):
    def __init__(self, command, *more, **options):
        if command[1] == "-c":
            signal.raise_signal(signal.SIGTERM)
        super().__init__(command, *more, **options)
subprocess.Popen = Popen
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Cluster:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return Cluster(tmp_path / "cluster", monkeypatch)


def submit(code: str, options: str = "time=08:00:00", n_jobs: int = 2) -> slurm.SlurmArray:
    return slurm.submit([sys.executable, "-c", code], n_jobs, parse_slurm(options), Path("logs"), "cudt-smoke")


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Callable[..., int]]:
    """A job whose worker has begun; calling it sends the process a signal and returns the exit code."""
    Path("began").unlink(missing_ok=True)
    job = cluster.start()

    def stop(how: int, kill: Callable[[int, int], None] = os.kill) -> int:
        kill(job.pid, how)
        return job.wait(20)

    try:
        until(lambda: Path("began").exists())
        yield stop
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_jobs_are_one_array_with_the_options(cluster, tmp_path):
    options = "partition=gpu,gpus=1,mem=32G,time=08:00:00,cpus-per-task=4,array-parallelism=2,account=vision"
    array = submit("pass", options, n_jobs=3)
    lines = cluster.submission().splitlines()
    asked = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    logs = tmp_path / "logs"
    assert asked == {
        *("partition=gpu", "gpus=1", "mem=32G", "cpus-per-task=4", "account=vision"),
        *(
            "array=0-2%2",
            "time=480",
            "signal=USR2@180",
            "requeue",
            "job-name=cudt-smoke",
            "nodes=1",
            "open-mode=append",
        ),
        *("open-mode=append", f"output={logs}/%A_%a_0_log.out", f"error={logs}/%A_%a_0_log.err"),
    }
    (run,) = (line for line in lines if line.startswith("srun "))
    assert " --cpus-per-task=4 " in run
    assert array == slurm.SlurmArray("4242", 3, logs)
    assert array.summary().splitlines()[0] == "submitted 3 workers as job array 4242"
    assert f"logs   {logs}/4242_*_log.out" in array.summary()


def test_a_name_of_the_jobs_can_be_given(cluster):
    submit("pass", "time=10,job-name=mine")
    assert cluster.submission().count("job-name=mine") == cluster.submission().count("--job-name") == 1


def test_one_worker_is_a_job_without_an_array(cluster, tmp_path):
    array = submit("print('finished')", n_jobs=1)
    assert "array" not in cluster.submission()
    assert array.summary().startswith("submitted 1 worker as job 4242\n")
    assert cluster.start(is_array=False).wait(20) == 0
    assert "finished" in (tmp_path / "logs" / "4242_0_log.out").read_text()


@pytest.mark.parametrize("how", [signal.SIGUSR2, signal.SIGTERM])
def test_a_job_that_has_to_end_saves_and_is_requeued(cluster, how, tmp_path):
    submit(WORKER)
    with running(cluster) as stop:
        assert stop(how) != 0
    assert Path("saved").read_text() == "half"
    assert cluster.requeued() == ["requeue 4242_0"]
    assert cluster.start().wait(20) == 0
    assert "finished from half" in (tmp_path / "logs" / "4242_0_0_log.out").read_text()
    assert cluster.requeued() == ["requeue 4242_0"]


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", ""])
def test_a_cancelled_job_saves_and_is_not_requeued(cluster, state):
    submit(WORKER)
    cluster.say_state(state)
    with running(cluster) as stop:
        assert stop(signal.SIGTERM) == 130
    assert Path("saved").exists()
    assert cluster.requeued() == []


@pytest.mark.parametrize("how", [signal.SIGUSR2, signal.SIGTERM])
def test_the_signal_may_reach_every_process_of_the_job(cluster, how):
    submit(WORKER)
    with running(cluster) as stop:
        stop(how, os.killpg)
    assert Path("saved").exists()
    assert cluster.requeued() == ["requeue 4242_0"]


def test_a_worker_that_takes_too_long_is_killed_and_the_job_requeued(cluster, monkeypatch):
    # The job is a new process, which reads the constant from its own copy of the module.
    Path("sitecustomize.py").write_text("import cudt.sweep.slurm_job as job\njob._SAVING = 1\n")
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{os.environ['PYTHONPATH']}")
    submit(WORKER.replace("sys.exit(130)", "time.sleep(60)"))
    with running(cluster) as stop:
        stop(signal.SIGUSR2)
    assert cluster.requeued() == ["requeue 4242_0"]


def test_a_job_that_has_to_end_while_its_worker_starts_is_requeued(cluster, monkeypatch):
    Path("sitecustomize.py").write_text(STOPPED_EARLY)
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{os.environ['PYTHONPATH']}")
    submit(WORKER)
    job = cluster.start()
    try:
        assert job.wait(20) != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert cluster.requeued() == ["requeue 4242_0"]


def test_a_worker_that_fails_gives_the_job_its_exit_code(cluster, tmp_path):
    submit("import sys; sys.exit('error: no data')")
    assert cluster.start().wait(20) == 1
    assert "error: no data" in (tmp_path / "logs" / "4242_0_0_log.err").read_text()
    assert cluster.requeued() == []


def test_a_worker_that_dies_is_not_requeued(cluster):
    submit("import os; os.kill(os.getpid(), 9)")
    assert cluster.start().wait(20) != 0
    assert cluster.requeued() == []


def test_what_sbatch_refuses_is_an_error_with_its_reason(cluster):
    sbatch = cluster.folder / "bin" / "sbatch"
    sbatch.write_text("#!/bin/bash\necho 'sbatch: error: invalid partition specified: gpuu' >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"^sbatch refused the jobs: invalid partition specified: gpuu$"):
        submit("pass", "partition=gpuu,time=10")


def test_without_slurm_or_submitit_the_error_says_how_to_get_them(cluster, monkeypatch):
    url = "postgresql://cudt@db/cudt"
    slurm.check_cluster(url)
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"submitit is missing; pip install 'cudt\[slurm\]'$"):
            slurm.check_cluster(url)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="sbatch and srun are not on the path; run cudt on a login node"):
        slurm.check_cluster(url)


@pytest.mark.parametrize("storage", [None, "sqlite:////data/study.db"])
def test_a_file_is_no_storage_for_the_nodes_of_a_cluster(cluster, storage):
    with pytest.raises(UserError, match=r"need a database that all nodes reach.* use --storage postgresql://"):
        slurm.check_cluster(storage)


@pytest.mark.parametrize("storage", ["study.db", "postgresql://me:secret@db:port/trials"])
def test_a_malformed_url_is_an_error_without_its_password(cluster, storage):
    with pytest.raises(UserError, match=r"^cannot open storage \(not a valid URL\): ") as error:
        slurm.check_cluster(storage)
    assert "secret" not in str(error.value)


def joining(logs: Path) -> list[str]:
    """The command of a job that was submitted."""
    (pickled,) = logs.glob("*_1_submitted.pkl")
    worker = pickle.loads(pickled.read_bytes()).function
    assert isinstance(worker, JobWorker)
    return list(worker.command)


def test_a_sweep_has_begun_before_its_jobs_are_submitted(cluster, command, postgres_url, tmp_path, monkeypatch):
    path = write_search(tmp_path)
    monkeypatch.setenv("CUDT_STORAGE", postgres_url)
    options = ("--launcher", "slurm", "--slurm", "partition=gpu,time=60", "--workers", 2, "--device", "cuda")
    code, said, errors = command("sweep", "--search", path, *map(str, options))
    assert (code, errors) == (0, "")
    (folder,) = (tmp_path / "outputs" / "sweeps" / "reviews-ut").iterdir()
    logs = folder / "logs" / "slurm"
    assert said == slurm.SlurmArray("4242", 2, logs).summary() + "\n"
    assert "#SBATCH --job-name=cudt-mine" in cluster.submission()
    assert cluster.storage() == postgres_url
    words = joining(logs)
    assert words[1:7] == ["-m", "cudt", "sweep", "--join", "--search", folder.name]
    assert words[7:] == ["--device", "cuda", "--out", str(tmp_path / "outputs")]
    # The password is in no file, and what the jobs join is there.
    assert not [file for file in folder.rglob("*") if file.is_file() and PASSWORD in file.read_text(errors="ignore")]
    assert stored.find(postgres_url, folder.name).search.arms.keys() == {"constrained"}


def test_errors_of_a_sweep_come_before_its_jobs(cluster, command, tmp_path):
    path = write_search(tmp_path, score={"measure": "metric", "direction": "minimize"})
    options = ["sweep", "--search", path, "--launcher", "slurm", "--storage", "postgresql://cudt@127.0.0.1:1/cudt"]
    for more, problem in {
        (): "error: --launcher slurm: needs --slurm, for example",
        ("--slurm", "tme=60"): "error: --slurm: unknown key 'tme'; did you mean 'time'?",
        ("--slurm", "time=60"): "error: search mine: score.direction must be 'maximize'",
    }.items():
        code, _, errors = command(*options, *more)
        assert (code, errors[: len(problem)]) == (2, problem)
    code, _, errors = command("sweep", "--search", write_search(tmp_path), *options[3:], "--slurm", "time=60")
    assert (code, errors[:57]) == (2, "error: cannot open storage postgresql://cudt@127.0.0.1:1/")
    assert command("sweep", "--search", path, "--slurm", "time=10")[2] == "error: --slurm: needs --launcher slurm\n"
    assert not cluster.has_jobs
