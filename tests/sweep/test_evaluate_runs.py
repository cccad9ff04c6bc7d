"""`cudt eval-ood --workers`: the same tables as by one process, whatever happens to workers."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import CommandLine, call, copy, cudt, environment
from tests.sweep.conftest import InThisProcess

__all__ = ["call", "copy"]
NOISE = ["--perturbation", "gaussian", "uniform", "--device", "cpu"]


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudt.sweep.watch.Processes", InThisProcess)


def tables(run: Path) -> dict[str, bytes]:
    """Every file that an evaluation writes into a run folder."""
    return {
        path.name: path.read_bytes()
        for path in [*run.glob("*.csv"), *run.glob("*.parquet"), run / "run.json"]
    }


def test_levels_of_one_run_that_are_shared_give_the_same_bytes(
    call: CommandLine, copy, no_processes, tmp_path
):
    other = shutil.copytree(copy.path, tmp_path / "twin")
    code, printed, _ = call("eval-ood", "twin", *NOISE)
    assert code == 0
    code, shared, errors = call("eval-ood", "copy", *NOISE, "--workers", "3")
    assert (code, errors) == (0, "")
    lines = shared.splitlines()
    assert [line.split("  ")[:2] for line in lines[:3]] == [
        [f"{n}/4", f"copy, share {n} of 3"] for n in (1, 2, 3)
    ]
    assert lines[3].startswith("4/4  copy  evaluated in ")
    # Then the curves, as by one process.
    assert lines[4:] == printed.replace("twin", "copy").splitlines()
    assert tables(copy.path) == tables(other)
    assert not [*copy.path.glob(".measured*")]


def test_a_full_disk_stops_the_command_and_leaves_nothing(
    call: CommandLine, copy, no_processes, monkeypatch
):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "copy/ood.csv")

    temporary = Path(tempfile.mkdtemp())
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr("cudt.evaluation.evaluate.evaluate_ood", full)
    code, output, errors = call("eval-ood", "copy", *NOISE, "--workers", "2")
    assert (code, len(errors.splitlines()), "failed" in output) == (1, 1, False)
    assert errors.startswith("stopped: ")
    assert "No space left on device: 'copy/ood.csv'" in errors
    assert not (copy.path / ".measured").exists()
    assert [*temporary.iterdir()] == []


def test_a_run_that_fails_is_reported_and_the_others_are_evaluated(
    call: CommandLine, copy, no_processes, tmp_path
):
    broken = Path(shutil.copytree(copy.path, tmp_path / "broken"))
    (broken / "checkpoints" / "best.safetensors").unlink()
    code, printed, errors = call("eval-ood", "broken", "copy", "--device", "cpu", "--workers", "2")
    assert code == 1
    assert errors.startswith(
        "error: broken: broken/checkpoints/best.safetensors: damaged (missing)"
    )
    assert len(errors.splitlines()) == 1
    # The folder is kept for its logs.
    logs = Path(errors.strip().rpartition("; logs are in ")[2])
    assert logs.parent.is_dir()
    shutil.rmtree(logs.parent)
    assert "written to copy/ood.csv" in printed
    assert not (broken / "ood.csv").exists()


@pytest.mark.slow
def test_two_processes_give_the_same_bytes_also_if_one_is_killed(copy, tmp_path):
    other = shutil.copytree(copy.path, tmp_path / "twin")
    assert cudt("eval-ood", "twin", *NOISE, cwd=tmp_path).returncode == 0
    command = [sys.executable, "-m", "cudt", "eval-ood", "copy", *NOISE, "--workers", "2"]
    started = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    parent, victim = psutil.Process(started.pid), None
    while victim is None:
        assert started.poll() is None
        workers = [one for one in parent.children() if "spawn_main" in " ".join(one.cmdline())]
        victim = next((one for one in workers if one.num_threads() > 2), None)
        time.sleep(0.01)
    os.kill(victim.pid, signal.SIGKILL)
    printed, _ = started.communicate(timeout=120)
    assert started.returncode == 0
    assert "evaluated in " in printed
    assert tables(copy.path) == tables(other)
