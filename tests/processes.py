"""Several processes on this machine, as a launcher starts them, without waiting for torch to be
imported again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

# What training imports on its way, here once for all processes: it takes longer than a tiny
# training.
import torch._dynamo
import torch.distributed.distributed_c10d  # noqa: F401

#: Seconds after which a group of processes is taken to hang.
LIMIT = 120.0
#: Seconds that a process waits for the others before it ends.
PATIENCE = 20.0


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


def start(count: int, work: Callable[[], Any], folder: Path) -> list[Any]:
    """Forked processes in which `work` runs; its results go to files in the folder."""
    context, port = multiprocessing.get_context("fork"), free_port()
    started = [
        context.Process(
            target=_run,
            args=(work, environment(index, count, port), folder / f"{index}.pkl"),
            name=str(index),
        )
        for index in range(count)
    ]
    for one in started:
        one.start()
    return started


def together(count: int, work: Callable[[], Any]) -> list[Any]:
    """The results of `work` in several processes, in their order; an error of one of them is raised
    here."""
    with tempfile.TemporaryDirectory() as folder:
        started = start(count, work, Path(folder))
        end(started)
        results = [_read(Path(folder) / f"{index}.pkl") for index in range(count)]
    failed = [text for kind, text in results if kind == "error"]
    assert not failed, failed[0]
    return [value for _, value in results]


@dataclass(frozen=True)
class Ended:
    """A command that ended in one process: its exit code (below 0, the signal that killed it) and
    what it printed."""

    code: int | None
    output: str
    errors: str


def commands(count: int, *arguments: object) -> list[Ended]:
    """`cudt ARGUMENTS` in several processes that no agent watches over, in their order."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = start(
            count,
            lambda: run_command(
                folder / multiprocessing.current_process().name, *map(str, arguments)
            ),
            folder,
        )
        codes = end(started)
        printed = [
            [(folder / f"{index}.{end}").read_text() for end in ("out", "err")]
            for index in range(count)
        ]
    return [Ended(code, *texts) for code, texts in zip(codes, printed, strict=True)]


def run_command(printed: Path, *arguments: str) -> NoReturn:
    """Be `cudt ARGUMENTS`, in a forked process: what it prints goes to the files PRINTED.out and
    PRINTED.err."""
    from cudt.cli import main

    for number, stream, end in ((1, sys.stdout, "out"), (2, sys.stderr, "err")):
        stream.flush()
        os.dup2(os.open(f"{printed}.{end}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["cudt", *arguments]
    # pytest captures what is written to its own objects.
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    code: object = 0
    try:
        main.main()
    except SystemExit as done:
        code = done.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1 if code else 0)


def end(started: Sequence[Any], limit: float = LIMIT) -> list[int | None]:
    """Wait for processes; kill those that hang. Returns their exit codes."""
    for one in started:
        one.join(limit)
    for one in started:
        one.kill()
        one.join()
    return [one.exitcode for one in started]


def _read(path: Path) -> tuple[str, Any]:
    return (
        pickle.loads(path.read_bytes())
        if path.is_file()
        else ("error", f"{path.name}: ended without a result")
    )


def _run(work: Callable[[], Any], variables: dict[str, str], result: Path) -> None:
    os.environ.update(variables)
    try:
        content = ("value", work())
    except BaseException:
        content = ("error", traceback.format_exc())
    result.write_bytes(pickle.dumps(content))
    if content[0] == "value":
        _wait_for_others(result.parent, int(variables["WORLD_SIZE"]))
    # Without torch's and pytest's clean-up, which belongs to the parent.
    os._exit(0 if content[0] == "value" else 1)


def _wait_for_others(folder: Path, count: int) -> None:
    """Wait until all processes have a result: the end of one closes its connections, which others
    may still use."""
    until = time.monotonic() + PATIENCE
    while len([*folder.glob("*.pkl")]) < count and time.monotonic() < until:
        time.sleep(0.01)
