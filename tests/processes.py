"""Several processes on this machine, as a launcher starts them, without waiting for torch to be imported again."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# What training imports on its way, here once for all processes: it takes longer than a tiny training.
import torch._dynamo
import torch.distributed.distributed_c10d  # noqa: F401

#: Seconds after which a group of processes is taken to hang.
LIMIT = 120.0


def environment(index: int, count: int, port: int) -> dict[str, str]:
    """What a launcher sets; also what srun and mpirun can be told to set."""
    return {
        "RANK": str(index),
        "LOCAL_RANK": str(index),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def in_child(*acts: Callable[[], object]) -> int:
    """Fork a process that calls a function and exits; returns its process id."""
    if child := os.fork():
        return child
    # It must end with the test that waits for it.
    signal.alarm(60)
    try:
        for act in acts:
            act()
        os._exit(0)
    except BaseException:
        # pytest shows what was printed if the test fails.
        traceback.print_exc()
    finally:
        os._exit(1)


def ending(child: int) -> int:
    """The exit code of a forked process; negative if a signal killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def together(count: int, work: Callable[[], Any]) -> list[Any]:
    """The results of `work` in several forked processes, in their order; an error of one of them is raised here."""
    context, port = multiprocessing.get_context("fork"), free_port()
    barrier = context.Barrier(count)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{index}.pkl" for index in range(count)]
        started = [
            context.Process(
                target=_run, args=(work, environment(index, count, port), file, barrier)
            )
            for index, file in enumerate(files)
        ]
        for one in started:
            one.start()
        for one in started:
            one.join(LIMIT)
        for one in started:
            one.kill()
            one.join()
        missing = ("error", "a process ended without a result")
        found = [pickle.loads(one.read_bytes()) if one.is_file() else missing for one in files]
    failed = [text for kind, text in found if kind == "error"]
    assert not failed, failed[0]
    return [value for _, value in found]


def _run(work: Callable[[], Any], variables: dict[str, str], result: Path, barrier: Any) -> None:
    os.environ.update(variables)
    try:
        content = ("value", work())
    except BaseException:
        content = ("error", traceback.format_exc())
        barrier.abort()
    result.write_bytes(pickle.dumps(content))
    # The end of one closes its connections, which others may still use.
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait(LIMIT)
    # Without torch's and pytest's clean-up, which belongs to the parent.
    os._exit(0)


@dataclass(frozen=True)
class Ended:
    """A command that ended in one process: its exit code and what it printed."""

    code: Any
    output: str
    errors: str


def commands(count: int, *arguments: object) -> list[Ended]:
    """`cudt ARGUMENTS` in several processes, in their order."""
    return together(count, partial(_command, *map(str, arguments)))


def _command(*arguments: str) -> Ended:
    from cudt.cli import main

    sys.argv = ["cudt", *arguments]
    code: Any = 0
    output, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        patch.setattr(os, "_exit", sys.exit)
        try:
            main.main()
        except SystemExit as done:
            code = done.code
    return Ended(code or 0, output.getvalue(), errors.getvalue())
