"""Benches of whole commands: processes of their own, timed by the CPU time of ended child processes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path


def cpu_of_children() -> float:
    """CPU seconds of all child processes that have ended; a clock for `interleaved`."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_python(*arguments: str, cwd: Path, returns: int = 0) -> str:
    """Run Python in a process of its own and return its standard error; another exit code than expected is an error."""
    # The folder of a run must not hide the package under test, which is found from here.
    path = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {arguments[0]}", *arguments[1:]]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != returns:
        raise RuntimeError(f"exit code {done.returncode}, expected {returns}:\n{done.stderr}")
    return done.stderr
