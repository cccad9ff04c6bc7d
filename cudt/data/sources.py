"""Errors of files that are read: one line for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudt.utils.errors import UserError

#: Characters of what a library says about a file.
_SHOWN = 200


@contextmanager
def reading(file: Path, problem: str, advice: str) -> Iterator[None]:
    """Turn any error of the block into a UserError about the file."""
    with explaining(f"{file}: {problem}", advice):
        yield


@contextmanager
def explaining(problem: str, advice: str) -> Iterator[None]:
    """The same for what is not a single file; libraries raise many kinds of errors for damaged or hostile input."""
    try:
        yield
    except BaseException as error:
        if not is_from_library(error):
            raise
        raise UserError(f"{problem} ({reason_of(error)}); {advice}") from None


def is_from_library(error: BaseException) -> bool:
    """Whether a library could not use its input: the error is neither ours, nor an interruption."""
    if isinstance(error, UserError):
        return False
    # A panic of a library written in Rust is no Exception, and its class cannot be imported.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def reason_of(error: BaseException) -> str:
    """What a library says about a problem, in one line that is not too long."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    # Its end often says what to do.
    half = _SHOWN // 2
    return (text if len(text) <= _SHOWN else f"{text[:half]} … {text[-half:]}") or type(error).__name__
