"""Two programs that compute in turns, each in a process of its own, with the CPU seconds of every
turn.

In one process, cudt and a peer would share settings that belong to a process, such as those of the
memory allocator. A program (`benchmarks/speed/programs/NAME.py`) calls `Turn.end()` after each
update or batch and waits there for its next turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any


class Program:
    """A program that runs one turn at a time; the job is handed to it as JSON."""

    def __init__(self, name: str, folder: Path, **job: Any) -> None:
        folder.mkdir(parents=True)
        file, self._log = folder / "job.json", folder / "log.txt"
        file.write_text(json.dumps({**job, "folder": str(folder)}, default=str), encoding="utf-8")
        self._errors = self._log.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.programs.{name}", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.result: dict[str, Any] | None = None
        self._listen()

    def turn(self) -> float:
        """The CPU seconds of the next turn; 0 if the program has ended, which sets `result`."""
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
            raise RuntimeError(
                f"{self._process.args!r}:\n{self._log.read_text(encoding='utf-8')[-3000:]}"
            )
        said = json.loads(line)
        self.result = said.get("result")
        return said["seconds"]

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()


class Turn:
    """The child's side: waits for each turn, and reports its CPU seconds."""

    def __init__(self) -> None:
        # Libraries print; only turns go to the parent.
        self._out, sys.stdout = sys.stdout, sys.stderr
        self._began = 0.0

    @staticmethod
    def job() -> dict[str, Any]:
        """What the parent asks for."""
        return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))

    def begin(self) -> None:
        """Wait for the first turn; what was computed before is not counted."""
        self._say({"seconds": 0.0})

    def end(self) -> None:
        """Report a turn and wait for the next."""
        self._say({"seconds": time.process_time() - self._began})

    def finish(self, **result: Any) -> None:
        """Report the last turn with the result of the program."""
        seconds = time.process_time() - self._began
        print(json.dumps({"seconds": seconds, "result": result}), file=self._out, flush=True)

    def _say(self, said: dict[str, Any]) -> None:
        print(json.dumps(said), file=self._out, flush=True)
        if not sys.stdin.readline():
            sys.exit()
        self._began = time.process_time()
