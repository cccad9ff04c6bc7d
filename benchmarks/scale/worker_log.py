"""What a simulated worker did, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Log:
    """When a worker had a trial, and when it had none."""

    def __init__(self) -> None:
        self.is_ready = threading.Event()
        self.end = 0.0
        """When the simulation ends."""
        self.free: list[float] = []
        """When it began to have nothing to do."""
        self.busy: list[float] = []
        """When it got a trial."""
        self.errors = 0

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the end."""
        time.sleep(max(0.0, min(seconds, self.end - time.time())))

    def work(self, seconds: float, report: Callable[[], object] = lambda: None) -> None:
        """Sleep in place of a trial, and report every second."""
        self.busy.append(time.time())
        end = min(self.end, time.time() + seconds)
        while time.time() < end:
            report()
            time.sleep(max(0.0, min(1.0, end - time.time())))
        self.free.append(time.time())
