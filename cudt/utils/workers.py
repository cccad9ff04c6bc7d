"""Worker processes on this machine: start them, see how they end, stop them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudt.utils.errors import MACHINE_ERRORS

if TYPE_CHECKING:
    from cudt.utils.device import DeviceName

#: The exit code of a worker that a fault of the machine has ended; its log ends with the fault.
FAULT = 71
#: Seconds that a worker has to save its run after it was asked to stop.
_GRACE_PERIOD = 60.0
Environment = dict[str, str]


@dataclass(frozen=True)
class Ended:
    """How a worker process ended: its exit code is negative if a signal ended it."""

    worker: int
    code: int
    log: Path

    @property
    def how(self) -> str:
        by = f"by {signal.Signals(-self.code).name}" if self.code < 0 else f"with code {self.code}"
        return f"{by}; see {self.log}"


class Workers:
    """Processes, one for each environment, that call `function(argument)` and end with the exit
    code that it returns; what they print goes to their logs.
    """

    def __init__(
        self, each: Sequence[Environment], logs: Path, function: Callable[[Any], int], argument: Any
    ) -> None:
        self._environments, self._logs = each, logs
        self._job = pickle.dumps((function, argument))
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Workers:
        self._logs.mkdir(parents=True, exist_ok=True)
        for worker in range(len(self._environments)):
            self.start(worker)
        return self

    def __exit__(self, *exception: object) -> None:
        # Some are left only after an error here; they save their runs.
        self.stop()
        end = time.monotonic() + _GRACE_PERIOD
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            process.kill()

    @property
    def n_running(self) -> int:
        return len(self._running)

    def start(self, worker: int) -> None:
        """Start a worker, at first or after it has ended."""
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        # A session of its own: Ctrl-C must reach the parent alone, which asks each to stop.
        with self._log(worker).open("ab") as log:
            self._running[worker] = process = subprocess.Popen(
                [sys.executable, "-m", "cudt.utils.workers"],
                env={**os.environ, **path, **self._environments[worker]},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # No command line shows the job, which may have a password.
        assert process.stdin is not None
        process.stdin.write(self._job)
        process.stdin.flush()

    def wait(self, timeout: float) -> list[Ended]:
        """The workers that end within `timeout` seconds."""
        end, ended = time.monotonic() + timeout, list[int]()
        while self._running and time.monotonic() < end and not ended:
            time.sleep(0.1)
            ended = [worker for worker, one in self._running.items() if one.poll() is not None]
        codes = {worker: self._running.pop(worker).returncode for worker in ended}
        return [Ended(worker, code, self._log(worker)) for worker, code in codes.items()]

    def stop(self) -> None:
        """Ask every worker to save its run and end."""
        for process in self._running.values():
            process.terminate()

    def _log(self, worker: int) -> Path:
        return self._logs / f"worker-{worker + 1}.log"


def environments(n: int, device: DeviceName) -> list[Environment]:
    """The environment of each of n workers: its share of the cores, and one GPU if there is any."""
    from cudt.utils.device import choose

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", f"{max(1, (cores or 1) // n)}")}
    if choose(device).type != "cuda":
        return [share] * n
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = [one for one in given if one.strip()] or [*map(str, range(torch.cuda.device_count()))]
    return [{**share, "CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]} for index in range(n)]


def _work() -> int:
    """What a worker process does."""
    function, argument = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        return int(function(argument))
    except MACHINE_ERRORS as error:
        print(error, file=sys.stderr)
        return FAULT


def _stop_with_parent() -> None:
    """Wait until the parent ends, which closes the pipe, then save the run and end too."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_PERIOD)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(_work())
