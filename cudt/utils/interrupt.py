"""Stopping on request: the first Ctrl-C or SIGTERM is handled at the next point where work can be
saved.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """A context in which the first stop signal sets `requested`; a Ctrl-C after it stops the
    process as usual.

    A second SIGTERM does not: batch systems send it to every process of a job, some twice, and
    parents pass it on.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        """The first signal; 0 while there is none."""
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal_number != 0

    def __enter__(self) -> StopRequest:
        # Signal handlers can only be set in the main thread; in other threads the caller's handlers
        # stay.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore(*self._previous)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = self.signal_number or number
        self._restore(signal.SIGINT)

    def _restore(self, *numbers: int) -> None:
        for number in numbers:
            if number in self._previous:
                signal.signal(number, self._previous.pop(number))
