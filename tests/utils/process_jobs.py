"""What worker processes do in tests: imported by name, and light, so that they start fast."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

from cudt.utils.errors import StopRequest

PLANTED_AT_IMPORT = os.environ.get("PLANTED")


def obey(job: Any) -> int:
    """Behave as the word in the job says; the exit code."""
    word, *more = job if isinstance(job, tuple) else (job,)
    print(f"job: {word}", flush=True)
    match word:
        case "code":
            return 75
        case "crash":
            raise ZeroDivisionError
        case "fault":
            raise OSError(errno.ENOSPC, "x", "ood.csv")
        case "exit":
            os._exit(7)
        case "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "look":
            print(f"at import: {PLANTED_AT_IMPORT}\ngroup: {os.getpgid(0)}", flush=True)
        case "wait":
            return _waited(Path(more[0]))
    return 0


def _waited(folder: Path) -> int:
    """Say that we are running and wait for the file `go`; after a stop signal, say that we are
    saving."""
    with StopRequest() as stop:
        (folder / f"running-{os.getpid()}").touch()
        until(lambda: stop.requested or (folder / "go").exists())
        if stop.requested:
            (folder / f"saving-{os.getpid()}").touch()
            until((folder / "go").exists)
            return 130
    return 0


def until(condition: Any) -> None:
    # A job must not outlive the test.
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
