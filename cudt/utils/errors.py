"""Errors and warnings that are shown to the user, and stopping on request."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class DataWarning(UserWarning):
    """A recoverable problem in the data; the command line prints it as one line."""


class UserError(Exception):
    """An error that the user can fix: printed without a traceback, exit code 2."""


class DamagedFileError(UserError):
    """A file is not as cudt wrote it: cut off, changed or missing."""


class MachineFaultError(Exception):
    """The machine failed, not the run, which a repeat resumes: printed without a traceback, exit
    code 1.
    """


#: What stops a command but does not fail a run: a full disk, lost storage.
MACHINE_ERRORS = (OSError, MachineFaultError)


class TrainingStoppedError(Exception):
    """Training cannot continue, for example after a non-finite loss: printed without a traceback,
    exit code 1.
    """


class TrainingPrunedError(Exception):
    """A sweep ended a training early, after an epoch; it can be resumed."""


class TrainingInterruptedError(Exception):
    """Work was stopped on request and can be resumed: printed without a traceback. The exit code is
    130 after Ctrl-C and 143 after SIGTERM.
    """

    def __init__(self, message: str, signal_number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, handled wherever Ctrl-C is."""


def signal_of(error: KeyboardInterrupt) -> int:
    """The signal that an interruption stands for."""
    return signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT


class StopRequest:
    """A context in which the first Ctrl-C or SIGTERM sets `requested`, so that work can be saved.

    A second Ctrl-C acts as usual. A second SIGTERM does not: batch systems send several.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        """The first signal; 0 while there is none."""
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether there was a signal."""
        return self.signal_number != 0

    def __enter__(self) -> StopRequest:
        # Only the main thread can set handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = self.signal_number or number
        signal.signal(signal.SIGINT, self._before[signal.SIGINT])
