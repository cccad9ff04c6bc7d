"""What a bench is, and programs that take turns."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class SkippedError(Exception):
    """The bench cannot run here; the message says what is missing and how to get it."""


@dataclass(frozen=True)
class Outcome:
    """The ratio of each round, ours ÷ the peer's."""

    ratios: list[float]
    note: str = ""
    name: str = ""
    """The name of the row, if a bench has several."""


@dataclass(frozen=True)
class Bench:
    """A comparison of cudt with a peer; `measure` gets an empty folder."""

    name: str
    what: str
    """ours ÷ peer, in words."""
    goal: float
    measure: Callable[[Path], list[Outcome]]
    at_least: bool = False
    """Whether the ratio should be at least the goal; otherwise at most."""


def interleaved(
    ours: Callable[[], object],
    peer: Callable[[], object],
    rounds: int = 7,
    clock: Callable[[], float] = time.process_time,
) -> list[float]:
    """ours ÷ peer in each round, after one to warm up; the order alternates, so that neither always
    follows the other.
    """
    ratios = []
    for number in range(1 + rounds):
        seconds = {}
        for part in (ours, peer) if number % 2 else (peer, ours):
            start = clock()
            part()
            seconds[part] = clock() - start
        ratios.append(seconds[ours] / seconds[peer])
    return ratios[1:]


class Program(AbstractContextManager["Program"]):
    """A program of programs.py in a process of its own, which runs one turn at a time.

    In one process, cudt and a peer would share what belongs to a process, such as the memory
    allocator. The program calls `Turns.end()` after each update or batch, and waits there.
    """

    def __init__(self, name: str, folder: Path, **job: Any) -> None:
        folder.mkdir(parents=True)
        given = json.dumps({**job, "folder": str(folder)}, default=str)
        self._errors = (folder / "log.txt").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.programs", name, given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.result: dict[str, Any] | None = None
        self._listen()

    def turn(self) -> float:
        """The CPU seconds of the next turn; 0 once the program has ended, which sets `result`."""
        if self.result is not None:
            return 0.0
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._listen()

    def _listen(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(self._errors.read()[-3000:])
        said = json.loads(line)
        self.result = said.get("result")
        seconds: float = said["seconds"]
        return seconds

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()


class Turns:
    """The program's side: waits for each turn, and reports its CPU seconds."""

    def __init__(self) -> None:
        # Libraries print; only turns go to the parent.
        self._out, sys.stdout = sys.stdout, sys.stderr
        self._began = 0.0

    def begin(self) -> None:
        """Wait for the first turn; what was computed before is not counted."""
        self._wait({"seconds": 0.0})

    def end(self) -> None:
        """Report a turn and wait for the next."""
        self._wait({"seconds": time.process_time() - self._began})

    def finish(self, **result: Any) -> None:
        """Report the last turn with the result of the program."""
        self._say({"seconds": time.process_time() - self._began, "result": result})

    def _wait(self, said: dict[str, Any]) -> None:
        self._say(said)
        if not sys.stdin.readline():
            sys.exit()
        self._began = time.process_time()

    def _say(self, said: dict[str, Any]) -> None:
        print(json.dumps(said), file=self._out, flush=True)
