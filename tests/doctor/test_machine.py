from __future__ import annotations

import os
import shutil
from collections import namedtuple

import psutil
import pytest

from cudt.doctor import machine
from tests.doctor.conftest import ON_CPU, bad, found, scope

GB = 2**30
Memory = namedtuple("Memory", "available total")
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def plenty(monkeypatch, tmp_path):
    """Eight cores, 32 GB, no control groups, large shared memory."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(24 * GB, 32 * GB))
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_SHARED", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(8 * GB, 0, 8 * GB))
    return tmp_path


def test_a_large_machine_is_in_order(plenty):
    assert [one.title for one in found(machine.CHECK, scope())] == [
        "8 cores, 1 thread",
        "24.0 GB of 32.0 GB of memory are free",
    ]


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "150000 100000\n"},
        {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"},
    ],
    ids=["second", "first"],
)
def test_more_threads_than_the_container_may_use_are_a_warning(plenty, files):
    for name, text in files.items():
        (plenty / name).parent.mkdir(exist_ok=True)
        (plenty / name).write_text(text)
    (one,) = bad(machine.CHECK, scope(torch={**ON_CPU, "threads": 8}))
    assert one.title == "torch uses 8 threads, but this process may use 2 cores"
    assert one.advice == "set OMP_NUM_THREADS=2"


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("-1", 8), ("50000 100000", 1)])
def test_a_quota_may_be_missing_or_below_one_core(plenty, quota, cores):
    (plenty / "cpu.max").write_text(quota)
    assert machine.usable_cores() == cores


@pytest.mark.parametrize(
    ("limit", "used"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_the_containers_limit_counts_not_the_machines_memory(plenty, limit, used):
    (plenty / "memory").mkdir()
    (plenty / limit).write_text(str(4 * GB))
    (plenty / used).write_text(str(3 * GB))
    assert machine.free_memory() == (GB, 4 * GB)
    assert bad(machine.CHECK, scope())[0].severity == "warning"
    (plenty / limit).write_text("max" if limit == "memory.max" else str(2**63 - 4096))
    assert machine.free_memory() == (24 * GB, 32 * GB)


def test_no_memory_is_a_problem_and_small_shared_memory_a_warning(plenty, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(GB // 4, 32 * GB))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**26, 0, 2**26))
    memory, shared = bad(machine.CHECK, scope())
    assert (memory.severity, shared.severity) == ("problem", "warning")
    assert "64 MB" in shared.title
