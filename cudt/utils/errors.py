"""Errors that are meant for the person at the terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DataWarning(UserWarning):
    """Something in the data that was gone on without; the command line tells it in a line."""


class UserError(Exception):
    """A mistake that the user can mend: shown as it reads, without a traceback, exit code 2."""


class TrainingStoppedError(Exception):
    """Training cannot go on (a non-finite loss, say): shown as it reads, exit code 1."""


class TrainingInterruptedError(Exception):
    """Training was asked to stop, and can go on: shown as it reads, exit code 130."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of `choices`, or nothing where none is close."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
