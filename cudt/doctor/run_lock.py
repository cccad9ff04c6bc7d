"""Whether a command is using a run. A run in use is never examined nor repaired: its files are changing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from cudt.runs.run import LOCK_FILE
from cudt.utils.errors import UserError


def is_in_use(run: Path) -> bool:
    """Whether a process holds the lock of a run; creates nothing."""
    if not (run / LOCK_FILE).exists():
        return False
    try:
        with held(run):
            return False
    except UserError:
        return True


@contextmanager
def held(run: Path) -> Iterator[None]:
    """Keep commands from using a run while it is repaired; a UserError if one is using it."""
    lock = FileLock(run / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError("a command is using the run now") from None
    try:
        yield
    finally:
        lock.release()
