"""Space for a sweep's last words: a file next to its SQLite storage that is deleted when the disk is full.

Without space, SQLite cannot record that a trial waits again, and whoever finds the trial counts a death.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from optuna.storages import BaseStorage

from cudt.sweep.shared import SharedStorage

#: Bytes: the journal of a transaction has a copy of every page that it changes.
_SIZE = 256 * 1024


def _path(storage: BaseStorage | None) -> Path | None:
    """The file; None if the storage is not an SQLite file."""
    if not isinstance(storage, SharedStorage) or storage.engine.name != "sqlite":
        return None
    return Path(f"{storage.engine.url.database}.reserve")


@contextmanager
def reserved(storage: BaseStorage | None) -> Iterator[None]:
    """Keep the space in the block."""
    path = _path(storage)
    if path is None:
        yield
        return
    # A disk that is full already is reported by whoever needs to write.
    with suppress(OSError):
        path.write_bytes(bytes(_SIZE))
    try:
        yield
    finally:
        release(storage)


def release(storage: BaseStorage | None) -> None:
    """Free the space."""
    if (path := _path(storage)) is not None:
        with suppress(OSError):
            path.unlink(missing_ok=True)
