"""Temporaries: files and folders that their writer renames or deletes when it is done.

A killed writer leaves them behind. Their names say which process writes them (`.ood.csv.1f0c6a2b-4711-90210-a8x_3kq1`:
machine, process, its start, a random part), so the next writer in the same folder deletes those of dead processes. Of
a process on another machine nobody knows whether it is alive: its temporaries are deleted after a day.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudt.utils.process_identity import is_alive, machine, start_of

#: Seconds after which a temporary is deleted whose writer cannot be seen.
_A_DAY = 86_400.0
#: Bytes of a file's name in that of its temporary: file systems allow 255 in all.
_LENGTH = 150
_NAME = re.compile(r"\..+\.([0-9a-f]{8})-(\d{1,10})-(\d{1,12})-[a-z0-9_]{8}", re.DOTALL)


def new_file(path: Path) -> Path:
    """An empty private file next to `path`."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path.name, os.getpid()))
    os.close(handle)
    return Path(name)


def new_folder(path: Path) -> Path:
    """An empty private folder next to `path`."""
    delete_abandoned(path.parent)
    return Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path.name, os.getpid())))


@contextmanager
def folder_next_to(path: Path) -> Iterator[Path]:
    """An empty folder next to `path`, deleted at the end unless it was renamed."""
    made = new_folder(path)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def delete_abandoned(folder: Path, *, below: bool = False) -> None:
    """Delete the temporaries of dead writers in a folder, and in those `below` it."""
    for entry in abandoned(folder, below=below):
        # A folder that is nested too deep for Python was not made by cudt.
        with contextlib.suppress(OSError, RecursionError):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()


def abandoned(folder: Path, *, below: bool = False) -> list[Path]:
    """The temporaries of dead writers in a folder, and in those `below` it."""
    found: list[Path] = []
    # Not a recursion: somebody else may have nested a thousand folders.
    left = [str(folder)]
    while left:
        # A folder that does not exist, or that another process deletes, has none.
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                if writer := _NAME.fullmatch(entry.name):
                    if _is_abandoned(entry, *writer.groups()):
                        found.append(Path(entry.path))
                elif below and entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
    return found


def is_temporary(name: str) -> bool:
    """Whether a file or folder has the name of a temporary."""
    return _NAME.fullmatch(name) is not None


def _is_abandoned(entry: os.DirEntry[str], on: str, process: str, start: str) -> bool:
    if f"{on}-{process}-{start}" == _writer(os.getpid()):
        return False
    if on == _short(machine()):
        return not is_alive(int(process), int(start) / 100)
    with contextlib.suppress(OSError):
        # Not the time of the content: a hard link has that of the file it was made of.
        return entry.stat(follow_symlinks=False).st_ctime < time.time() - _A_DAY
    return False


@functools.lru_cache(maxsize=1024)
def _prefix(name: str, process: int) -> str:
    shown = name.encode("utf-8", "surrogateescape")[:_LENGTH].decode("utf-8", "ignore")
    return f".{shown}.{_writer(process)}-"


@functools.cache
def _writer(process: int) -> str:
    return f"{_short(machine())}-{process}-{round(start_of(process) * 100)}"


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
