"""Errors of files that are read: one line for the user, unless the machine is at fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudt.utils.errors import UserError
from cudt.utils.faults import is_out_of_memory, machine_fault
from cudt.utils.files import naming

#: Characters of what a library says about a file.
_SHOWN = 200
#: Bytes of a file that cannot need much memory, whatever it claims.
_SMALL = 10_000_000


@contextmanager
def reading(file: Path, problem: str, advice: str) -> Iterator[None]:
    """Turn any error of the block into a UserError about the file.

    A fault of the machine (a lost disk, no memory) goes on with the file's path: the file may be fine.
    """
    with explaining(f"{file}: {problem}", advice, file), naming(file):
        yield


@contextmanager
def explaining(problem: str, advice: str, file: Path | None = None) -> Iterator[None]:
    """The same for what is not a single file; libraries raise many kinds of errors for damaged or hostile input."""
    try:
        yield
    except BaseException as error:
        if not is_from_library(error, file):
            raise
        raise UserError(f"{problem} ({reason_of(error)}); {advice}") from None


def is_from_library(error: BaseException, file: Path | None = None) -> bool:
    """Whether a library could not use its input: the error is neither ours, nor the machine's, nor an interruption."""
    if isinstance(error, UserError):
        return False
    # A panic of a library written in Rust is no Exception, and its class cannot be imported.
    if not isinstance(error, Exception):
        return type(error).__name__ == "PanicException"
    return machine_fault(error) is None or (file is not None and _is_pretended(error, file))


def _is_pretended(error: Exception, file: Path) -> bool:
    """Whether damage passes as a fault of the machine: FFmpeg says EIO and ENOMEM, Pillow MemoryError.

    If it were the machine's, the file could not be read either, or would be large.
    """
    size = 0
    try:
        with file.open("rb") as opened:
            while content := opened.read(1 << 20):
                size += len(content)
    except OSError:
        return False
    return isinstance(error, OSError | MemoryError) and (size < _SMALL or not is_out_of_memory(error))


def reason_of(error: BaseException) -> str:
    """What a library says about a problem, in one line that is not too long."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    # Its end often says what to do.
    half = _SHOWN // 2
    return (text if len(text) <= _SHOWN else f"{text[:half]} … {text[-half:]}") or type(error).__name__
