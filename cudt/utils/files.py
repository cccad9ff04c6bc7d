"""Writing files so that readers see the old file or the new one, and never a part of it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file next to `path` to be filled, which then replaces it; errors name `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _next_to(path)
    try:
        temporary.touch()
        # Some libraries replace it with a file that only its owner can read.
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno is None or str(error.filename) not in ("None", str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def folder_next_to(path: Path) -> Iterator[Path]:
    """An empty folder next to `path`, deleted at the end unless it was renamed."""
    folder = _next_to(path)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _next_to(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_text(path: Path, text: str) -> None:
    """Replace a text file; names of files that are not valid UTF-8 are escaped."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def delete(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def cache_folder() -> Path:
    """`$CUDT_CACHE`, or `~/.cache/cudt`: files that save time and can be deleted."""
    return Path(os.environ.get("CUDT_CACHE") or Path.home() / ".cache" / "cudt")


def file_name(text: str) -> str:
    """The text with every character replaced that is unusual in a file name."""
    return re.sub(r"[^\w.-]+", "_", text)
