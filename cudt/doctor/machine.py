"""Cores, memory and shared memory, with the limits of a container."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.scope import Scope

_GB = 2**30
#: Importing torch takes half a GB; a small model and its data as much again.
_LITTLE_MEMORY, _NO_MEMORY = 2 * _GB, _GB // 2
#: What loaders of a few workers pass through shared memory; containers of Docker have 64 MB.
_LITTLE_SHARED = _GB // 2
_GROUPS = Path("/sys/fs/cgroup")
_SHARED = Path("/dev/shm")


def check(scope: Scope) -> Iterator[Diagnosis]:
    """Whether threads, memory and shared memory are enough."""
    yield _threads(scope.probe.torch().get("threads"))
    yield _memory()
    if _SHARED.is_dir() and (size := shutil.disk_usage(_SHARED).total) < _LITTLE_SHARED:
        yield Diagnosis(
            "warning",
            f"shared memory ({_SHARED}) has {size / 2**20:.0f} MB: processes that load data may be killed",
            "start the container with --shm-size=8g, or set loading.workers=0",
        )


def _threads(threads: int | None) -> Diagnosis:
    cores = usable_cores()
    if threads is not None and threads > cores:
        title = f"torch uses {_counted(threads, 'thread')}, but this process may use {_counted(cores, 'core')}"
        return Diagnosis("warning", title, f"set OMP_NUM_THREADS={cores}")
    return Diagnosis("ok", _counted(cores, "core") + (f", {_counted(threads, 'thread')}" if threads else ""))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def usable_cores() -> int:
    """The cores that this process may use: those it is bound to, within the quota of its control group."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return bound if quota is None else max(1, min(bound, round(quota)))


def _quota() -> float | None:
    """The cores that a control group allows; None without a limit."""
    words = _words(_GROUPS / "cpu.max")
    if len(words) != 2:
        words = [*_words(_GROUPS / "cpu/cpu.cfs_quota_us"), *_words(_GROUPS / "cpu/cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None
    return int(words[0]) / int(words[1])


def _memory() -> Diagnosis:
    free, total = free_memory()
    title = f"{free / _GB:.1f} GB of {total / _GB:.1f} GB of memory are free"
    if free < _LITTLE_MEMORY:
        advice = "end other programs, or use a smaller training.batch_size"
        return Diagnosis("problem" if free < _NO_MEMORY else "warning", title, advice)
    return Diagnosis("ok", title)


def free_memory() -> tuple[int, int]:
    """Bytes of memory that are free and that there are, within the limit of the control group."""
    import psutil

    memory = psutil.virtual_memory()
    free, total = int(memory.available), int(memory.total)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        words = [*_words(_GROUPS / limit), *_words(_GROUPS / used)]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[0]) < total:
            total, free = int(words[0]), min(free, max(0, int(words[0]) - int(words[1])))
    return free, total


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


CHECK = Check("Machine", 30, check)
