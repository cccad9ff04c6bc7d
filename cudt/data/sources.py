"""Errors of files that are read: one line for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudt.utils.errors import UserError

#: Characters of what a library says about a file.
_SHOWN = 200


@contextmanager
def reading(source: Path | str, problem: str, advice: str) -> Iterator[None]:
    """Turn any error of the block into a UserError about its source: libraries raise many kinds for
    damaged input.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{source}: {problem} ({reason_of(error)}); {advice}") from None


def reason_of(error: BaseException) -> str:
    """What a library says about a problem, in one line that is not too long."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    # Its end often says what to do.
    half = _SHOWN // 2
    return (text if len(text) <= _SHOWN else f"{text[:half]} … {text[-half:]}") or type(
        error
    ).__name__
