"""Writing files so that they are always complete on disk; the data root and the cache folder."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from cudt.utils.errors import UserError


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        make_readable(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_readable(path: Path) -> None:
    """Give a file the permissions of the user's umask; mkstemp and safetensors create private files."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_if_changed(path: Path, text: str) -> None:
    """Write a text file atomically, unless it already has this content."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def check_data_root(folder: Path | None) -> Path | None:
    """The folder that holds the data sets, or None; a UserError if it does not exist."""
    if folder is not None and not folder.is_dir():
        raise UserError(f"data root '{folder}' does not exist; give the folder that holds the data sets")
    return folder


def cache_folder() -> Path:
    """`$CUDT_CACHE`, or `~/.cache/cudt`: files that save time and can be deleted."""
    return Path(os.environ.get("CUDT_CACHE") or Path.home() / ".cache" / "cudt")


def file_name(text: str) -> str:
    """The text with every character replaced that is unusual in a file name."""
    return re.sub(r"[^\w.-]+", "_", text)
