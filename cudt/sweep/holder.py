"""Who holds a trial: the process that runs it, so that everybody can tell whether it is still alive."""

from __future__ import annotations

import functools
import multiprocessing
import os
import socket
import uuid
from typing import Any

from cudt.utils.process_identity import is_alive, machine, start_of

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
        "machine": machine(),
        "process": process,
        "start": start_of(process),
        "parent": watcher,
        "parent_start": 0.0 if watcher is None else start_of(watcher),
    }


def is_mine(holder: Holder, process: int) -> bool:
    """Whether a trial is held by a process of this machine."""
    return holder.get("machine") == machine() and holder.get("process") == process


def is_dead(holder: Holder) -> bool:
    """Whether a holder's process is known to be gone; of other machines that is not known.

    While the process that started it lives, that one gives its trial back, because it knows how the worker died.
    """
    if holder.get("machine") != machine():
        return False
    if holder["parent"] is not None and is_alive(holder["parent"], holder["parent_start"]):
        return False
    return not is_alive(holder["process"], holder["start"])


def host_of(holder: Holder) -> str:
    """The name of a holder's host; empty if it is this one."""
    return "" if holder.get("machine") == machine() else str(holder.get("host", ""))
