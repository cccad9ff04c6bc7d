"""Writing files so that they are always complete on disk; the data root and the cache folder."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from cudt.utils.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file next to `path` to be filled, which then replaces it: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        make_readable(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a temporary file, then let it replace `path`."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        write(file)


def link_or_copy(source: Path, path: Path) -> None:
    """Let `path` be one file with `source`, or a copy of it where the file system has no hard links.

    Only for files that are never changed, only replaced: a change would be one of both.
    """
    with replacing(path) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


def delete(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def append_at(path: Path, size: int, content: bytes) -> None:
    """Cut a file off after `size` bytes and append `content`; it is on disk when this returns.

    Only new bytes are written. If the process dies, the file may end with a part of them.
    """
    with path.open("r+b") as file:
        file.truncate(size)
        file.seek(size)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


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
