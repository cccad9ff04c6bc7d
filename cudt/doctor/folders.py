"""The folders that cudt writes to: space, permissions, and what their file systems can do."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.scope import Scope
from cudt.utils.files import cache_folder

_LITTLE_SPACE, _NO_SPACE = 2 * 2**30, 2**28
#: Seconds by which the clock of a file server may differ from ours.
_SKEW = 5.0


def check(scope: Scope) -> Iterator[Diagnosis]:
    """Free space and permissions of outputs, cache and temporary files; locks and links where runs are."""
    for folder in scope.folders:
        yield from _place(folder, "runs", "give another folder with --out")
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield from _file_system(folder)
    yield from _place(cache_folder(), "cache", "set CUDT_CACHE to another folder")
    yield from _place(Path(tempfile.gettempdir()), "temporary files", "set TMPDIR to another folder")


def _place(folder: Path, what: str, instead: str) -> Iterator[Diagnosis]:
    """Whether files can be written to a folder, or to the folder in which it will be created."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        yield Diagnosis("problem", f"{what}: {there} is a file, not a folder", f"rename it, or {instead}")
        return
    if not _is_writable(there):
        yield Diagnosis("problem", f"{what}: {there} cannot be written to", f"change its permissions, or {instead}")
        return
    free = shutil.disk_usage(there).free
    title = f"{what}: {folder} has {free / 2**30:.1f} GB of free space"
    if free < _LITTLE_SPACE:
        yield Diagnosis("problem" if free < _NO_SPACE else "warning", title, f"free some space, or {instead}")
    else:
        yield Diagnosis("ok", title)


def _is_writable(folder: Path) -> bool:
    # A read-only file system and a quota refuse what the permissions allow, so a file is really written.
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
            return True
    except OSError:
        return False


def _file_system(folder: Path) -> Iterator[Diagnosis]:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor.") as name:
        file = Path(name) / "file"
        now = time.time()
        file.write_bytes(b"")
        skew = file.stat().st_mtime - now
        if abs(skew) > _SKEW:
            yield Diagnosis(
                "warning",
                f"{folder}: the clock of its file server is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}",
                "synchronise the clocks of the machines (ntp)",
            )
        if not _has_locks(file):
            yield Diagnosis(
                "warning",
                f"{folder}: the file system has no locks, so two commands can write into the same run",
                "never use a run from two commands at once, or move the runs to another file system",
            )
        try:
            os.link(file, file.with_name("link"))
        except OSError:
            yield Diagnosis(
                "note",
                f"{folder}: the file system has no hard links, so each checkpoint is copied",
                "keep more space free",
            )


def _has_locks(file: Path) -> bool:
    """Whether a second lock on a file is refused while the first is held."""
    try:
        import fcntl
    except ImportError:  # Windows locks every open file
        return True
    with file.open("r+b") as first, file.open("r+b") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


CHECK = Check("Folders", 40, check)
