"""Memory that does not suffice: one line that says what to change, and the same command resumes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cudt.runs.find import find_runs, open_run
from cudt.training.trainer import Trainer
from tests.cli.conftest import SMALL, call, copy
from tests.faults.test_disk import is_one_line

__all__ = ["call", "copy"]
TRAIN = ["train", "--recipe", "reviews-ut", *SMALL, "--set", "training.epochs=1", "--device", "cpu", "--out", "out"]


def test_out_of_memory_in_training_is_one_line_and_the_same_command_resumes(call, tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 40000000 bytes. Error code 12 (Cannot allocate memory)"
        )

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_loss_sums", fail)
        code, _, error = call(*TRAIN)
    assert (code, is_one_line(error)) == (1, True)
    assert "out of memory on the host (tried to allocate 40.0 MB); close other programs, or take less memory" in error
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
