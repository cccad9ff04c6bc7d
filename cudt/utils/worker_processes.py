"""Worker processes: start them, see how they end, stop them; any of them may die at any time.

Nothing heavy is imported here: a worker sets which GPU it may see before torch is imported.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import pkgutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudt.utils.errors import MACHINE_ERRORS

if TYPE_CHECKING:
    from cudt.utils.device import DeviceName

#: The exit code of a worker that a fault of the machine has ended.
FAULT = 71
#: Seconds that a worker has to save its run after it was asked to stop.
_GRACE_PERIOD = 60.0


@dataclass(frozen=True)
class Ended:
    """A worker process that has ended."""

    worker: int
    """Its index."""
    process: int
    """Its process id."""
    code: int
    """Its exit code; negative if a signal ended it."""
    log: Path
    fault: str | None = None
    """The fault of the machine that ended it, in one line."""

    @property
    def how(self) -> str:
        if self.code < 0:
            return f"by signal {-self.code} ({signal.Signals(-self.code).name}); see {self.log}"
        return f"with exit code {self.code}; see {self.log}"


class Processes:
    """Workers, one for each environment. `function` names what a worker calls with `argument`, and
    its exit code.

    The function is named (`module:function`) because a worker imports it only after its environment
    is set.
    """

    def __init__(
        self, environments: Sequence[dict[str, str]], logs: Path, function: str, argument: Any
    ) -> None:
        self._environments, self._logs = environments, logs
        self._function, self._argument = function, argument
        self._running: dict[int, BaseProcess] = {}
        self._words: dict[int, Connection] = {}
        """What a worker says before it ends; its log may be on a full disk."""
        self._asked: set[int] = set()

    def __enter__(self) -> Processes:
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
        context = multiprocessing.get_context("spawn")
        self._words[worker], speak = context.Pipe(duplex=False)
        arguments = (
            self._environments[worker],
            self.log_of(worker),
            self._function,
            self._argument,
            speak,
        )
        process = context.Process(target=_run, args=arguments, name="cudt-worker")
        process.start()
        speak.close()
        self._running[worker] = process

    def wait(self, timeout: float) -> Iterator[Ended]:
        """The workers that end within `timeout` seconds."""
        ended = multiprocessing.connection.wait(
            [process.sentinel for process in self._running.values()], timeout
        )
        for worker, process in list(self._running.items()):
            if process.sentinel in ended:
                process.join()
                del self._running[worker]
                fault = self._fault_of(worker)
                yield Ended(
                    worker, process.pid or 0, process.exitcode or 0, self.log_of(worker), fault
                )

    def _fault_of(self, worker: int) -> str | None:
        with self._words.pop(worker) as words:
            try:
                return str(words.recv())
            except EOFError:
                return None

    def stop(self) -> None:
        """Ask every worker, once, to save its run and end."""
        for worker, process in self._running.items():
            if worker not in self._asked:
                self._asked.add(worker)
                process.terminate()

    def log_of(self, worker: int) -> Path:
        return self._logs / f"worker-{worker + 1}.log"


# ---------------------------------------------------------------- in the worker's process


def _run(
    environment: dict[str, str], log: Path, function: str, argument: Any, speak: Connection
) -> None:
    os.environ.update(environment)
    if hasattr(os, "setsid"):
        # Ctrl-C must reach the parent alone, which asks each worker to stop once.
        os.setsid()
    try:
        redirect_output(log)
        threading.Thread(target=stop_with_parent, daemon=True).start()
        code = pkgutil.resolve_name(function)(argument)
    except MACHINE_ERRORS as error:
        speak.send(str(error))
        code = FAULT
    sys.exit(code)


def redirect_output(log: Path) -> None:
    """Send stdout and stderr to a log: they would garble the parent's display, and a crash leaves
    its trace there.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(handle, number)
    faulthandler.enable()


def stop_with_parent() -> None:
    """Wait until the parent ends, then make this process save its run and end too."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_PERIOD)
        os._exit(1)


# ---------------------------------------------------------------- sharing the machine


def worker_environments(n_workers: int, device: DeviceName) -> list[dict[str, str]]:
    """The environment variables of each worker: its share of the cores, and one GPU where there are
    any.
    """
    share = os.environ.get("OMP_NUM_THREADS") or str(max(1, _n_cores() // n_workers))
    visible = _gpus(device)
    return [
        {
            "OMP_NUM_THREADS": share,
            **({"CUDA_VISIBLE_DEVICES": visible[number % len(visible)]} if visible else {}),
        }
        for number in range(n_workers)
    ]


def _n_cores() -> int:
    """The cores that this process may use: a container or a cluster may grant only some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus(device: DeviceName) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none when computing
    on the CPU.
    """
    from cudt.utils.device import choose

    if choose(device).type != "cuda":
        return []
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named or [str(number) for number in range(torch.cuda.device_count())]
