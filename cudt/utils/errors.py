"""Errors and warnings that are shown to the user."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable
from pathlib import Path

#: No name is longer; comparing a text of a hundred kilobytes with names would take minutes.
_LONGEST_WORD = 100


class DataWarning(UserWarning):
    """A recoverable problem in the data; the command line prints it as one line."""


class UserError(Exception):
    """An error that the user can fix: printed without a traceback, exit code 2."""


class DamagedFileError(UserError):
    """A file is not as cudt wrote it: cut off, empty, changed, or of another kind than its name
    says.
    """

    def __init__(self, path: Path, reason: str, advice: str) -> None:
        super().__init__(f"{path}: damaged ({reason}); {advice}")
        self.path, self.reason, self.advice = path, reason, advice

    def __reduce__(self) -> tuple[type[DamagedFileError], tuple[Path, str, str]]:
        # Processes that load data send their errors.
        return DamagedFileError, (self.path, self.reason, self.advice)


class MachineFaultError(Exception):
    """The machine failed, not the run: a full disk, lost storage. Nothing is spent, and a repeat
    resumes.

    Printed without a traceback, exit code 1.
    """


#: What stops a command but does not fail a run, which the same command resumes.
MACHINE_ERRORS = (OSError, MachineFaultError)


class TrainingStoppedError(Exception):
    """Training cannot continue, for example after a non-finite loss: printed without a traceback,
    exit code 1.
    """


class TrainingInterruptedError(Exception):
    """Work was stopped on request and can be resumed: printed without a traceback.

    The exit code is 130 after Ctrl-C and 143 after SIGTERM.
    """

    def __init__(self, message: str, signal_number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, handled wherever Ctrl-C is."""


def signal_of(error: KeyboardInterrupt) -> int:
    """The signal that an interruption stands for."""
    return signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT


class TrainingPrunedError(Exception):
    """A sweep ended a training early, after an epoch; it can be resumed."""


def closest(word: str, choices: Iterable[str]) -> str:
    """The closest of `choices`; an empty text if none is close."""
    if len(word) > _LONGEST_WORD:
        return ""
    return next(iter(difflib.get_close_matches(word, list(choices), n=1)), "")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of `choices`; an empty text if none is close."""
    meant = closest(word, choices)
    return f"; did you mean '{meant}'?" if meant else ""
