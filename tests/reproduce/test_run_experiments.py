"""`cudt reproduce` from beginning to end on tiny experiments; the slow test runs the whole smoke
scale."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock, Timeout
from rich.console import Console

from cudt import report
from cudt.reproduce import run_experiments
from tests.reproduce.scales import listed, write_scale, write_search
from tests.sweeps import seeds


def llama() -> dict[str, object]:
    asked = {"instructions": "questions.json", "gammas": [0.0, 1.5], "max_new_tokens": 3}
    return listed("smoke-llama", generated=True, completions=asked)


def stamps(out: Path) -> dict[str, int]:
    """The times at which runs were trained and evaluated, and completions written."""
    patterns = ("*/*/ood.csv", "*/*/checkpoints/best.safetensors", "*/*/completions/*seed0*.json")
    found = (path for pattern in patterns for path in out.glob(pattern))
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in found}


@pytest.mark.slow
def test_everything_is_done_once_and_reported(command, no_processes, tmp_path):
    scale = write_scale(
        tmp_path, listed(write_search(tmp_path), perturbations=["gaussian", "uniform"]), llama()
    )
    code, printed, errors = command(
        "reproduce", "--scale", scale, "--device", "cpu", "--out", "out"
    )
    assert (code, errors) == (0, "")
    assert "done           pair · reviews-ut: 2 runs, 2 evaluated" in printed
    assert "done           smoke-llama · smoke-llama: 2 runs, 2 evaluated" in printed
    assert "report: out/report/index.html" in printed
    out = tmp_path / "out"
    first = stamps(out)
    assert len(list(out.glob("*/*/ood.csv"))) == 4
    code, printed, _ = command("reproduce", "--scale", scale, "--device", "cpu", "--out", "out")
    assert code == 0
    assert "0 runs to train and 0 to evaluate" in printed
    assert stamps(out) == first


def test_an_experiment_without_its_data_is_skipped_and_the_others_run(
    command, no_processes, tmp_path
):
    lacking = write_search(tmp_path, "lacking", recipe="imdb-ut", fixed=None)
    scale = write_scale(tmp_path, listed(lacking), listed(write_search(tmp_path)))
    code, printed, _ = command("reproduce", "--scale", scale, "--device", "cpu", "--out", "out")
    assert code == 1
    assert "skipped        lacking · imdb-ut: 0 runs, 0 evaluated" in printed
    assert printed.count("run `hf download distilbert/distilbert-base-uncased") == 2
    assert "done           pair · reviews-ut: 2 runs, 2 evaluated" in printed


def test_failed_runs_do_not_stop_the_other_experiments(command, no_processes, tmp_path):
    wild = {
        "wild": seeds(
            1,
            fixed={"objective": "erm", "training.learning_rate": 1e30, "training.clip_norm": None},
        )
    }
    scale = write_scale(
        tmp_path, listed(write_search(tmp_path, "wild", arms=wild)), listed(write_search(tmp_path))
    )
    code, printed, _ = command("reproduce", "--scale", scale, "--device", "cpu", "--out", "out")
    assert code == 1
    assert (
        "partly failed  wild · reviews-ut: 0 runs, 0 evaluated\n    failed: 1 runs: see the "
        "reasons in out/sweeps" in printed
    )
    assert "done           pair · reviews-ut: 2 runs, 2 evaluated" in printed


def test_a_plan_writes_nothing(command, tmp_path):
    code, printed, _ = command(
        "reproduce", "--scale", write_scale(tmp_path, llama()), "--plan", "--out", "out"
    )
    assert code == 0
    assert "0/2" in printed
    assert not (tmp_path / "out").exists()


def test_a_scale_for_gpus_is_refused_without_one(command, no_processes, tmp_path, monkeypatch):
    monkeypatch.setattr("cudt.utils.device.accelerator", lambda: None)
    scale = write_scale(tmp_path, llama(), needs_gpu=True)
    code, printed, errors = command("reproduce", "--scale", scale, "--out", "out")
    assert code == 2
    assert "2 runs to train and 2 to evaluate" in printed
    assert errors.startswith(
        "error: scale mine needs a GPU and torch finds none; nothing was run. "
    )
    assert all(
        way in errors for way in ("a machine with one", "SCALE=cpu or smoke", "--device cpu")
    )
    assert not (tmp_path / "out").exists()
    assert command("reproduce", "--scale", scale, "--out", "out", "--plan")[0] == 0


def test_ctrl_c_says_how_to_resume(command, no_processes, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_experiments, "run_sweep", interrupted)
    code, _, errors = command(
        "reproduce", "--scale", write_scale(tmp_path), "--device", "cpu", "--out", "out"
    )
    assert (code, errors) == (130, "out: interrupted; run the same command to resume\n")


def test_a_fault_of_the_machine_stops_the_command(command, no_processes, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "out/run.json")

    monkeypatch.setattr("cudt.sweep.worker.run_cell", full)
    code, printed, errors = command(
        "reproduce", "--scale", write_scale(tmp_path), "--device", "cpu", "--out", "out"
    )
    assert (code, len(errors.splitlines()), "failed" in printed) == (1, 1, False)
    assert errors.startswith("stopped: ")
    assert "No space left on device: 'out/run.json'" in errors
    assert not Path("out/report").exists()


def test_mistakes_are_reported_before_anything_runs(command, tmp_path):
    code, _, errors = command("reproduce", "--scale", "smok")
    assert (code, errors) == (2, "error: no scale is called 'smok'; did you mean 'smoke'?\n")
    scale = write_scale(tmp_path, listed("alhpa"))
    assert command("reproduce", "--scale", scale)[0] == 2
    assert command("reproduce", "--scale", "smoke", "--data-root", "nowhere")[0] == 2


def test_a_report_is_written_again_if_a_run_ended_meanwhile(tmp_path, monkeypatch):
    run, page = tmp_path / "reviews-ut" / "erm-0", tmp_path / "report" / "index.html"
    for folder in (run, page.parent):
        folder.mkdir(parents=True)
    (run / "run.json").touch()
    written = []

    def write(folders, out) -> SimpleNamespace:
        with pytest.raises(Timeout), FileLock(tmp_path / ".report.lock", timeout=0):
            pass
        written.append(out)
        time.sleep(0.02)
        if len(written) == 1:
            (run / "ood.csv").touch()
        time.sleep(0.02)
        page.write_text("")
        return SimpleNamespace(page=page, warnings=[])

    monkeypatch.setattr(report, "write", write)
    for only_if_old in (False, True, True):
        run_experiments.write_report(tmp_path, Console(), only_if_old=only_if_old)
    assert len(written) == 2


@pytest.mark.slow
def test_the_smoke_scale_killed_halfway_and_repeated_does_nothing_twice(tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "cudt",
        "reproduce",
        "--scale",
        "smoke",
        "--workers",
        "2",
        "--out",
        str(out),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TERM": "dumb"}
    killed = subprocess.Popen(command, env=environment)
    while len(list(out.glob("*/*/ood.csv"))) < 20:
        assert killed.poll() is None
        time.sleep(0.2)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    # Workers end by themselves, and may finish their job.
    time.sleep(5)
    done = stamps(out)
    assert len(done) > 20
    assert subprocess.run(command, env=environment, timeout=1200).returncode == 0
    after = stamps(out)
    assert {path: after[path] for path in done} == done
    # Five of the 68 are runs of two sweeps.
    assert len(list(out.glob("*/*/ood.csv"))) == 63
    assert (out / "report" / "index.html").is_file()
