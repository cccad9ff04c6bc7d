"""Which errors are faults of the machine, and the line that each of them prints."""

from __future__ import annotations

import errno
import os
import sqlite3

import numpy as np
import pyarrow as pa
import pytest
import torch
from optuna.exceptions import StorageInternalError
from safetensors import SafetensorError
from sqlalchemy.exc import OperationalError

from cudt.utils import faults
from cudt.utils.errors import MachineFaultError, UserError
from cudt.utils.faults import expect_folder, is_memory_fault, machine_fault, memory_advice
from cudt.utils.files import append_at, replacing, write_text


def of_sqlite(text: str) -> Exception:
    return OperationalError("INSERT", {}, sqlite3.OperationalError(text))


def of_optuna(text: str) -> Exception:
    error = StorageInternalError("An exception is raised during the commit")
    error.__cause__ = of_sqlite(text)
    return error


def of_numpy() -> Exception:
    try:
        np.empty(1 << 60, np.uint8)
    except MemoryError as error:
        return error
    raise AssertionError


def of_loader(signal: str) -> Exception:
    """What torch raises if a process that loads data dies while the main thread waits for it."""
    error = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    error.__cause__ = RuntimeError(f"DataLoader worker (pid 7) is killed by signal: {signal}")
    return error


FAULTS = {
    "full disk": (OSError(errno.ENOSPC, "x", "/out/ood.csv"), "/out/ood.csv: no space left on device; free space on"),
    "quota": (OSError(errno.EDQUOT, "x", "/out/ood.csv"), "/out/ood.csv: disk quota exceeded; free some of your disk"),
    "stale": (OSError(errno.ESTALE, "x", "/nfs"), "/nfs: stale file handle; mount its file system again and run"),
    "broken": (OSError(errno.EIO, "x", "/out"), "/out: input/output error; check the disk and run the same command"),
    "open files": (OSError(errno.EMFILE, "x"), "too many open files; raise the limit of open files (`ulimit -n`)"),
    "no memory": (MemoryError(), "out of memory on the host; close other programs, or take less memory"),
    "the system's": (OSError(errno.ENOMEM, "x"), "out of memory on the host; close other programs"),
    "numpy": (of_numpy(), "out of memory on the host; "),
    "pyarrow": (pa.ArrowMemoryError("malloc of size 9 failed"), "out of memory on the host; "),
    "torch": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000 bytes. Error code 12"),
        "out of memory on the host (tried to allocate 40.0 MB); ",
    ),
    "CUDA": (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8 GiB"),
        "out of memory on the accelerator (tried to allocate 2.50 GiB); ",
    ),
    "cuBLAS": (
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        "out of memory on the accelerator; ",
    ),
    "cuDNN": (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "out of memory on the accelerator; "),
    "GPU": (
        RuntimeError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously"),
        "the accelerator failed (CUDA error: uncorrectable ECC error encountered); check it with `nvidia-smi`, or use",
    ),
    "lost GPU": (RuntimeError("CUDA error: GPU is lost"), "the accelerator failed (CUDA error: GPU is lost); "),
    "processes": (
        OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
        "resource temporarily unavailable; raise the limit of processes (`ulimit -u`)",
    ),
    "an import": (ImportError("libtorch.so: failed to map segment from shared object"), "out of memory on the host; "),
    "a loader's worker": (
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that"),
        "a process that loads data was killed: memory or shared memory (/dev/shm) did not suffice; set loading.workers",
    ),
    "workers": (RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly"), "a process that loads data was"),
    "a killed worker": (of_loader("Killed. "), "a process that loads data was killed: memory"),
    "SQLite": (of_sqlite("database or disk is full"), "the sweep's storage: database or disk is full; free space"),
    "Optuna": (of_optuna("disk I/O error"), "the sweep's storage: disk I/O error; "),
    "itself": (MachineFaultError("as it is"), "as it is"),
}
OTHERS = {
    "missing": FileNotFoundError(errno.ENOENT, "x", "/gone"),
    "forbidden": PermissionError(errno.EACCES, "x", "/secret"),
    "a user's": UserError("out of memory is no key"),
    "locked": of_sqlite("database is locked"),
    "a bug": RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    "another bug": KeyError("out of memory"),
    "a decoder that crashed": of_loader("Segmentation fault. "),
    "crashed": RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault. "),
    "a slow terminal": BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 0),
    "a download": OSError(errno.ETIMEDOUT, "x"),
    "no route": OSError(errno.EHOSTUNREACH, "x"),
    "a read-only folder": OSError(errno.EROFS, "x", "/out"),
}


@pytest.mark.parametrize(("error", "line"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_line_that_says_what_to_change(error, line):
    told = machine_fault(error)
    assert told is not None
    assert told.startswith(line)
    assert "\n" not in told
    if not isinstance(error, MachineFaultError):
        assert told.endswith("and run the same command again")


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_other_errors_are_not_the_machines(error, monkeypatch):
    # Tests before this one have written files.
    monkeypatch.setattr(faults, "_written", set())
    assert machine_fault(error) is None


def test_a_file_system_that_becomes_read_only_is_a_fault_and_one_that_was_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "_written", set())
    error = OSError(errno.EROFS, "x", str(tmp_path / "run" / "run.json"))
    assert machine_fault(error) is None
    write_text(tmp_path / "recipe.yaml", "x")
    told = machine_fault(error)
    assert told is not None
    assert told.startswith(f"{tmp_path}/run/run.json: read-only file system; make its file system writable")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (of_loader("Killed. "), True),
        (OSError(errno.ENOSPC, "x", "/out"), False),
        (MachineFaultError("as it is"), False),
    ],
)
def test_faults_of_memory_are_known_however_they_are_reported(error, expected):
    outer = MachineFaultError("outputs/run: as it is")
    outer.__cause__ = error
    assert (is_memory_fault(error), is_memory_fault(outer)) == (expected, expected)


def test_an_error_for_the_user_that_the_disk_caused_is_a_fault():
    def reading(error: OSError) -> str | None:
        try:
            try:
                raise error
            except OSError as found:
                raise UserError(f"reviews.csv: cannot be read ({found})") from None
        except UserError as raised:
            return machine_fault(raised)

    assert str(reading(OSError(errno.EIO, "x", "reviews.csv"))).startswith("reviews.csv: input/output error; check the")
    assert reading(PermissionError(errno.EACCES, "x", "reviews.csv")) is None


def test_the_free_space_is_that_of_the_file_system(tmp_path):
    told = machine_fault(OSError(errno.ENOSPC, "x", str(tmp_path / "not" / "yet")))
    assert told is not None
    free = float(told.partition("(")[2].partition(" MB")[0].replace(",", ""))
    stats = os.statvfs(tmp_path)
    assert free == pytest.approx(stats.f_bavail * stats.f_frsize / 1e6, rel=0.2)


def test_memory_advice_names_what_needed_it():
    with pytest.raises(MachineFaultError) as raised, memory_advice("validation", "lower evaluation.batch_size"):
        raise MemoryError
    assert str(raised.value) == (
        "validation: out of memory on the host; lower evaluation.batch_size, and run the command again"
    )
    with pytest.raises(KeyError), memory_advice("validation", "lower evaluation.batch_size"):
        raise KeyError("x")


@pytest.mark.parametrize("leaves_folder", [True, False], ids=["unmounted", "gone"])
def test_a_lost_data_root_is_a_fault_of_the_machine(leaves_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "_expected", set())
    root = tmp_path / "data"
    root.mkdir()
    (root / "a.csv").write_text("x")
    expect_folder(root)
    missing = UserError("data/b.csv does not exist")
    assert machine_fault(missing) is None
    (root / "a.csv").unlink()
    if not leaves_folder:
        root.rmdir()
    for error in (missing, FileNotFoundError(errno.ENOENT, "x", str(root / "a.csv"))):
        told = machine_fault(error)
        assert told is not None
        assert told.startswith(f"{root}: this folder was there when the command started and is gone")
    assert machine_fault(KeyError("x")) is None


# ---------------------------------------------------------------- errors that name their file


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "mkstemp", "replace"])
def test_errors_of_every_call_name_the_file_and_leave_the_old_one(call, tmp_path, monkeypatch):
    file = tmp_path / "run.json"
    file.write_text("old")

    def temporary(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / ".run.json.1f0c6a2b-4711-90210-a8x_3kq1"))

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr({"mkstemp": "tempfile.mkstemp", "replace": "pathlib.Path.replace"}[call], temporary)
    with pytest.raises(OSError, match="No space left") as raised:
        write_text(file, "new")
    assert raised.value.filename == str(file)
    assert (file.read_text(), [path.name for path in tmp_path.iterdir()]) == ("old", ["run.json"])


def test_appending_names_its_file(tmp_path, monkeypatch):
    file = tmp_path / "history.csv"
    file.write_text("step\n")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        append_at(file, 5, b"1\n")
    assert raised.value.filename == str(file)


def test_errors_of_safetensors_are_errors_of_the_system(tmp_path):
    file = tmp_path / "a.safetensors"
    with pytest.raises(OSError, match="No space left on device") as raised, replacing(file):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(file))
    assert list(tmp_path.iterdir()) == []
