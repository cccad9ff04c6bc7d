"""Jobs that workers run in tests of the pool: they are imported by name, and light, so that workers start fast."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from cudt.utils.errors import DataWarning, TrainingInterruptedError, TrainingStoppedError, UserError
from cudt.utils.interrupt import StopRequest
from cudt.utils.workers import Reported, Workers


def obey(job: Any, report: Any) -> Any:
    """Behave as the word in the job says."""
    word, *more = job if isinstance(job, tuple) else (job,)
    print(f"job: {word}", flush=True)
    match word:
        case "fail":
            raise UserError("a user error")
        case "stop":
            raise TrainingStoppedError("the loss is not finite")
        case "crash":
            raise ZeroDivisionError("division by zero")
        case "exit":
            os._exit(7)
        case "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "warn":
            warnings.warn("a clip is skipped", DataWarning, stacklevel=1)
            warnings.warn("from a library", FutureWarning, stacklevel=1)
        case "report":
            report({"step": 3})
        case "wait":
            return _waited(Path(more[0]))
        case "look":
            environment = {name: os.environ.get(name) for name in ("PLANTED", "OMP_NUM_THREADS")}
            return {**environment, "at import": PLANTED_AT_IMPORT, "group": os.getpgid(0), "process": os.getpid()}
    return word


PLANTED_AT_IMPORT = os.environ.get("PLANTED")


def _waited(folder: Path) -> str:
    """Create a file that says we are running, then wait for the file `go`; a stop signal makes us save until then."""
    with StopRequest() as stop:
        (folder / f"running-{os.getpid()}").touch()
        until(lambda: stop.requested or (folder / "go").exists())
        if stop.requested:
            (folder / f"saving-{os.getpid()}").touch()
            until(lambda: (folder / "go").exists())
            raise TrainingInterruptedError("saved")
    return "not interrupted"


def until(condition: Any) -> None:
    # A job must not outlive the test.
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def finish_after_ctrl_c(folder: Path) -> None:
    """A parent process that catches Ctrl-C, lets its worker finish, and prints the worker's messages."""
    with StopRequest() as stop, Workers([{}], folder / "logs", "tests.utils.worker_jobs:obey") as workers:
        workers.start("cell", ("wait", folder))
        until(lambda: stop.requested)
        (folder / "go").touch()
        while workers.is_busy:
            for _, _, message in workers.wait(1.0):
                if not isinstance(message, Reported):
                    print(message)


if __name__ == "__main__":
    finish_after_ctrl_c(Path(sys.argv[1]))
