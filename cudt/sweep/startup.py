"""What runs cost besides computing: starting the processes that train them, building data and model, writing files."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import time

#: Seconds per run besides computing. Measured with the smoke scale.
PER_RUN = 1.0
#: Cost of a worker (start, slow first run, end) in multiples of the time that its imports take.
_WORKER_IN_IMPORTS = 2.5
#: Seconds after which timing the imports is given up.
_IMPORT_TIMEOUT = 20.0


def seconds(runs: int, workers: int) -> float:
    """Seconds of work besides computing, for n runs on at most m workers."""
    return min(runs, workers) * worker_seconds() + runs * PER_RUN if runs else 0.0


@functools.cache
def worker_seconds() -> float:
    """Seconds of starting and ending a worker on this machine, timed once."""
    return _WORKER_IN_IMPORTS * import_seconds()


def import_seconds() -> float:
    """Seconds that a new process takes to import what a worker imports."""
    began = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", "import cudt.sweep.cell"], capture_output=True, timeout=_IMPORT_TIMEOUT, check=False
        )
    return time.monotonic() - began
