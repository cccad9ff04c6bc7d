"""Who holds a trial: the process that runs it, so that everybody can tell whether it is still alive."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import socket
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

#: Seconds by which two readings of a process's start may differ.
_TOLERANCE = 2.0

#: Host, machine, process and start of a worker; process and start of its parent; a token that is new for every trial.
Holder = dict[str, Any]


def new_holder() -> Holder:
    """This process as the holder of one more trial."""
    return {**_of_process(os.getpid()), "token": uuid.uuid4().hex}


@functools.cache
def _of_process(process: int) -> Holder:
    parent = multiprocessing.parent_process()
    watcher = None if parent is None else parent.pid
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "process": process,
        "start": _start(process),
        "parent": watcher,
        "parent_start": 0.0 if watcher is None else _start(watcher),
    }


def is_mine(holder: Holder, process: int) -> bool:
    """Whether a trial is held by a process of this machine."""
    return holder.get("machine") == _machine() and holder.get("process") == process


def is_dead(holder: Holder) -> bool:
    """Whether a holder's process is known to be gone; of other machines that is not known.

    While the process that started it lives, that one gives its trial back, because it knows how the worker died.
    """
    if holder.get("machine") != _machine():
        return False
    if holder["parent"] is not None and _is_alive(holder["parent"], holder["parent_start"]):
        return False
    return not _is_alive(holder["process"], holder["start"])


def host_of(holder: Holder) -> str:
    """The name of a holder's host; empty if it is this one."""
    return "" if holder.get("machine") == _machine() else str(holder.get("host", ""))


def counted(n_workers: int, hosts: Iterable[str]) -> str:
    """`1 worker`, `4 workers`, or `12 workers on 3 hosts`."""
    n_hosts = len(set(hosts))
    where = f" on {n_hosts} hosts" if n_hosts > 1 else ""
    return f"{n_workers} worker{'s' if n_workers != 1 else ''}{where}"


@functools.cache
def _machine() -> str:
    """What two processes have in common that can see each other: host, boot, and the container's process ids."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _start(process: int) -> float:
    """Seconds from the machine's boot to the start of a process, which a correction of the clock does not change."""
    try:
        return psutil.Process(process).create_time() - psutil.boot_time()
    except psutil.Error:
        return 0.0


def _is_alive(process: int, start: float) -> bool:
    try:
        is_zombie = psutil.Process(process).status() == psutil.STATUS_ZOMBIE
        return abs(_start(process) - start) < _TOLERANCE and not is_zombie
    except psutil.Error:
        return False
