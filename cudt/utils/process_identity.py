"""Which process of which machine this is, and whether another one is still alive."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from pathlib import Path

#: Seconds by which two readings of a process's start may differ.
_TOLERANCE = 2.0


@functools.cache
def machine() -> str:
    """What two processes have in common that can see each other: host, boot, and the container's process ids."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def start_of(process: int) -> float:
    """Seconds from the machine's boot to the start of a process, which a correction of the clock does not change."""
    import psutil

    try:
        return psutil.Process(process).create_time() - psutil.boot_time()
    except psutil.Error:
        return 0.0


def since_boot() -> float:
    """Seconds from the machine's boot until now, by the clock of `start_of`."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        # Linux counts the start of a process by this clock, and a correction of the time of day does not change it.
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    import psutil

    return time.time() - psutil.boot_time()


def is_alive(process: int, start: float) -> bool:
    """Whether the process of this machine that had this start is running."""
    import psutil

    try:
        is_zombie = psutil.Process(process).status() == psutil.STATUS_ZOMBIE
        return abs(start_of(process) - start) < _TOLERANCE and not is_zombie
    except psutil.NoSuchProcess:
        return _is_hidden(process)
    except psutil.Error:
        return False


def _is_hidden(process: int) -> bool:
    """Whether a process exists that this user may not see: on many clusters, /proc has only one's own (hidepid)."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False
