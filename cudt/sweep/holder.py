"""Who holds a trial: the process that runs it, so that everybody can tell whether it is still
alive.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Host, machine, process and start of a worker; process and start of its parent; a token that is
#: new for every trial.
Holder = dict[str, Any]


@functools.cache
def machine() -> str:
    """What two processes have in common that can see each other: host, boot, and the container's
    process ids.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _start_of(process: int) -> int:
    """When a process started, in ticks since the boot; 0 if it has ended, or where the system does
    not say it.
    """
    with suppress(OSError):
        # After the name, which may have spaces: the state, and 19 values later the start.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] == "Z" else int(fields[19])
    return 0


def _is_alive(process: int, start: int) -> bool:
    """Whether the process of this machine that had this start is running."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return _start_of(process) == start


def new_holder() -> Holder:
    """This process as the holder of one more trial."""
    return {**_of_process(os.getpid()), "token": uuid.uuid4().hex}


@functools.cache
def _of_process(process: int) -> Holder:
    parent = multiprocessing.parent_process()
    watcher = None if parent is None else parent.pid
    return {
        "host": socket.gethostname(),
        "machine": machine(),
        "process": process,
        "start": _start_of(process),
        "parent": watcher,
        "parent_start": 0 if watcher is None else _start_of(watcher),
    }


def is_mine(holder: Holder, process: int) -> bool:
    """Whether a trial is held by a process of this machine."""
    return holder.get("machine") == machine() and holder.get("process") == process


def is_dead(holder: Holder) -> bool:
    """Whether a holder's process is known to be gone; of other machines that is not known.

    While the process that started it lives, that one gives its trial back, because it knows how the
    worker died.
    """
    if holder.get("machine") != machine():
        return False
    if holder["parent"] is not None and _is_alive(holder["parent"], holder["parent_start"]):
        return False
    return not _is_alive(holder["process"], holder["start"])


def host_of(holder: Holder) -> str:
    """The name of a holder's host; empty if it is this one."""
    return "" if holder.get("machine") == machine() else str(holder.get("host", ""))
