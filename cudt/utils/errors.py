"""Errors and warnings that are shown to the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DataWarning(UserWarning):
    """A recoverable problem in the data; the command line prints it as one line."""


class UserError(Exception):
    """An error that the user can fix: printed without a traceback, exit code 2."""


class AgreedError(UserError):
    """A UserError that all processes of one command raise together: the main one prints it."""


class ProcessLostError(Exception):
    """Another process of the same command ended or hangs: printed without a traceback, exit code 1.

    The main process prints it. Because that may have ended itself, another one also `speaks`.
    """

    def __init__(self, message: str, *, speaks: bool = False) -> None:
        super().__init__(message)
        self.speaks = speaks


class TrainingStoppedError(Exception):
    """Training cannot continue, for example after a non-finite loss: printed without a traceback, exit code 1."""


class TrainingInterruptedError(Exception):
    """Training was stopped on request and can be resumed: printed without a traceback, exit code 130."""


class TrainingPrunedError(Exception):
    """A sweep ended a training early, after an epoch; it can be resumed."""


def closest(word: str, choices: Iterable[str]) -> str:
    """The closest of `choices`; an empty text if none is close."""
    return next(iter(difflib.get_close_matches(word, list(choices), n=1)), "")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of `choices`; an empty text if none is close."""
    meant = closest(word, choices)
    return f"; did you mean '{meant}'?" if meant else ""
