"""Which processes are alive."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import psutil
import pytest

from cudt.utils.process_identity import is_alive, since_boot, start_of


def test_a_process_is_alive_until_it_is_gone():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = start_of(process.pid)
    assert is_alive(process.pid, start)
    assert not is_alive(process.pid, start - 60)
    process.communicate(b"\n")
    assert not is_alive(process.pid, start)


def test_now_is_after_the_start_of_this_process_and_before_that_of_another():
    # The kernel knows the boot to the second.
    assert start_of(os.getpid()) < since_boot() + 1
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as later:
        assert start_of(later.pid) > start_of(os.getpid())
        later.communicate(b"\n")


@pytest.mark.parametrize(
    ("error", "expected"), [(PermissionError(), True), (ProcessLookupError(), False)], ids=["hidden", "gone"]
)
def test_a_process_of_another_user_that_is_hidden_is_alive(error, expected, monkeypatch):
    """Before: with /proc mounted with hidepid, its temporary files were deleted while it wrote them."""

    def hidden(process: int) -> Any:
        raise psutil.NoSuchProcess(process)

    def kill(process: int, signal: int) -> None:
        raise error

    monkeypatch.setattr(psutil, "Process", hidden)
    monkeypatch.setattr(os, "kill", kill)
    assert is_alive(4711, 1.0) is expected
