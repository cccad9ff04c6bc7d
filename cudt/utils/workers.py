"""Worker processes on this machine: start them, see how they end, stop them."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
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
        self._function, self._argument = function, argument
        self._running: dict[int, BaseProcess] = {}

    def __enter__(self) -> Workers:
        for worker in range(len(self._environments)):
            self.start(worker)
        return self

    def __exit__(self, *exception: object) -> None:
        # Some are left only after an error here; they save their runs.
        self.stop()
        end = time.monotonic() + _GRACE_PERIOD
        for process in self._running.values():
            process.join(max(0.0, end - time.monotonic()))
            process.kill()
            process.join()

    @property
    def n_running(self) -> int:
        return len(self._running)

    def start(self, worker: int) -> None:
        """Start a worker, at first or after it has ended."""
        arguments = (self._log(worker), self._function, self._argument)
        process = multiprocessing.get_context("spawn").Process(target=_run, args=arguments)
        before = dict(os.environ)
        # Not in the worker: torch, which unpickling the function may import, reads it once.
        os.environ.update(self._environments[worker])
        process.start()
        os.environ.clear()
        os.environ.update(before)
        self._running[worker] = process

    def wait(self, timeout: float) -> list[Ended]:
        """The workers that end within `timeout` seconds."""
        ended = wait([process.sentinel for process in self._running.values()], timeout)
        found = [worker for worker, one in self._running.items() if one.sentinel in ended]
        for worker in found:
            self._running[worker].join()
        codes = [self._running.pop(worker).exitcode or 0 for worker in found]
        return [Ended(one, code, self._log(one)) for one, code in zip(found, codes, strict=True)]

    def stop(self) -> None:
        """Ask every worker to save its run and end."""
        for process in self._running.values():
            process.terminate()

    def _log(self, worker: int) -> Path:
        return self._logs / f"worker-{worker + 1}.log"


def _run(log: Path, function: Callable[[Any], int], argument: Any) -> None:
    # Ctrl-C must reach the parent alone, which asks each worker to stop.
    os.setsid()
    log.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(handle, number)
    faulthandler.enable()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        code = function(argument)
    except MACHINE_ERRORS as error:
        print(error, file=sys.stderr)
        code = FAULT
    sys.exit(code)


def _stop_with_parent() -> None:
    """Wait until the parent ends, then make this process save its run and end too."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_PERIOD)
        os._exit(1)


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
