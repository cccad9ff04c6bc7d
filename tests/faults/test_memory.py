"""Memory that does not suffice: one line that says what to change, and the same command resumes.

The short part pretends it; the long one limits the address space of processes to ten sizes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cudt.runs.find import find_runs, open_run
from cudt.training.trainer import Trainer
from tests.cli.conftest import SMALL, call, copy, environment
from tests.faults.test_disk import contents, is_one_line

__all__ = ["call", "copy"]
TRAIN = ["train", "--recipe", "reviews-ut", *SMALL, "--set", "training.epochs=1", "--device", "cpu", "--out", "out"]


def test_out_of_memory_in_training_is_one_line_and_the_same_command_resumes(call, tmp_path, monkeypatch):
    """Before: 60 lines of traceback."""

    def fail(*_: Any) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 40000000 bytes. Error code 12 (Cannot allocate memory)"
        )

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_loss_sums", fail)
        code, _, error = call(*TRAIN)
    assert (code, is_one_line(error)) == (1, True)
    assert "update 1: out of memory on the host (tried to allocate 40.0 MB); set training.oom=split" in error
    (path,) = find_runs([tmp_path / "out"])
    assert open_run(path).info().status == "interrupted"
    assert call(*TRAIN)[0] == 0


def test_out_of_memory_in_a_library_is_one_line(call, copy, monkeypatch):
    def fail(*_: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 4096 failed")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", fail)
        code, _, error = call("eval-ood", "copy", "--gammas", "0")
    assert (code, is_one_line(error)) == (1, True)
    assert "out of memory on the host; lower evaluation.batch_size (now 256) with `cudt train --recipe " in error
    assert call("eval-ood", "copy", "--gammas", "0")[0] == 0


# ---------------------------------------------------------------- a limit for the address space


LIMITED = """
import resource, sys
limit = int(sys.argv.pop(1)) or resource.RLIM_INFINITY
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from cudt.cli.main import main
main()
"""
#: Megabytes: from too little for torch alone to enough for everything.
SIZES = (100, 300, 500, 600, 700, 750, 800, 850, 900, 1200)
LARGER = [*TRAIN, "--set", "model.width=256", "--set", "training.batch_size=96"]


def limited(megabytes: int, arguments: list[Any], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(megabytes * 10**6), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300)


#: What libraries say that end the process themselves: the loader of libraries, OpenBLAS, C++.
ABORTS = ("cannot allocate memory", "OpenBLAS error: Memory allocation", "std::bad_alloc")


def stops_with_a_line(done: subprocess.CompletedProcess[str]) -> bool:
    """One line of cudt, or the words of a library that ends the process itself; never a traceback."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("warning: ", "<jemalloc>"))]
    if any(words in done.stderr for words in ABORTS):
        return len(lines) <= 2 and "Traceback" not in done.stderr
    return done.returncode == 1 and len(lines) == 1 and lines[0].startswith("stopped: ")


def at_every_size(arguments: list[Any], folder: Path, fresh: Any) -> list[int]:
    """Run a command at each size, and again without a limit where it stopped; returns the sizes at which it did."""
    out, stopped = fresh(), []
    assert limited(0, arguments, folder).returncode == 0
    expected = contents(out)
    for size in SIZES:
        out = fresh()
        done = limited(size, arguments, folder)
        if done.returncode:
            stopped.append(size)
            assert stops_with_a_line(done), f"{size} MB: exit code {done.returncode}\n{done.stderr}"
            again = limited(0, arguments, folder)
            assert again.returncode == 0, f"after {size} MB: {again.stderr}"
        assert contents(out) == expected, f"after {size} MB"
    return stopped


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@pytest.mark.soak
def test_training_at_ten_sizes_of_memory(tmp_path):
    stopped = at_every_size(LARGER, tmp_path, lambda: emptied(tmp_path / "out"))
    print(f"train: stopped at {stopped} MB")
    assert {100, 300} <= {*stopped}
    assert 1200 not in stopped


@pytest.mark.soak
def test_evaluations_at_ten_sizes_of_memory(tmp_path):
    assert limited(0, LARGER, tmp_path).returncode == 0
    (run,) = find_runs([tmp_path / "out"])

    def fresh() -> Path:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return Path(shutil.copytree(run, tmp_path / "copy"))

    stopped = at_every_size(["eval-ood", "copy", "--gammas", "0,1"], tmp_path, fresh)
    print(f"eval-ood: stopped at {stopped} MB")
    assert {100, 300} <= {*stopped}
    assert 1200 not in stopped
