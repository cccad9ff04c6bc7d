"""Writing files so that they are always complete on disk; the data root and the cache folder."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from cudt.utils.errors import UserError

#: Bytes that are read at once.
_CHUNK = 2**20
#: The user's umask, which can only be read by setting it: once, before there are threads.
_UMASK = os.umask(0o022)
os.umask(_UMASK)
#: How the names of files and folders end that are not complete yet; they begin with a dot.
_TEMPORARY = ".tmp"
#: Characters of a file's name in that of its temporary: file systems allow 255 bytes.
_LENGTH = 50
#: What systems say that cannot sync folders, and folders that only may be written to.
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EISDIR, errno.EACCES, errno.EPERM)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file next to `path` to be filled, which then replaces it: readers see the old
    file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        handle, name = tempfile.mkstemp(_TEMPORARY, _prefix(path), path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())
            make_readable(temporary)
            temporary.replace(path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def folder_next_to(path: Path) -> Iterator[Path]:
    """An empty folder next to `path`, deleted at the end unless it was renamed."""
    folder = Path(tempfile.mkdtemp(_TEMPORARY, _prefix(path), path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(path: Path) -> str:
    return f".{path.name[:_LENGTH]}."


def delete_temporaries(folder: Path) -> None:
    """Delete what killed writers have left in a folder and below it; only for who keeps others from
    writing there.
    """
    for path in [*folder.rglob(f".*{_TEMPORARY}")]:
        delete(path)


def _sync_folder(folder: Path) -> None:
    """Let the names in a folder be on disk: the order in which files were replaced must survive a
    power failure.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors name the file that is written: those of write and fsync have no path, others the
    temporary file's.
    """
    try:
        yield
    except OSError as error:
        own = error.filename is None or os.fsdecode(error.filename).endswith(_TEMPORARY)
        if error.errno is None or not own:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        # Libraries written in Rust, such as safetensors, raise errors of their own.
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(number := int(found[1]), os.strerror(number), str(path)) from error
        raise


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a temporary file, then let it replace `path`."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        write(file)


def link_or_copy(source: Path, path: Path) -> None:
    """Let `path` be one file with `source`, or a copy of it where the file system has no hard
    links.

    Only for files that are never changed, only replaced: a change would be one of both.
    """
    with replacing(path) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


def is_file(path: Path) -> bool:
    """Whether a file exists; a name that no file can have, such as one of 300 characters, is not an
    error.
    """
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def files_below(folder: Path, names: Collection[str]) -> list[Path]:
    """The files of some names in a folder and below it, sorted."""
    return sorted(path for name in names for path in folder.rglob(name) if path.is_file())


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
    with naming(path), path.open("r+b") as file:
        file.truncate(size)
        file.seek(size)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_readable(path: Path) -> None:
    """Give a file the permissions of the user's umask; mkstemp and safetensors create private
    files.
    """
    path.chmod(0o666 & ~_UMASK)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; names of files that are not valid UTF-8 are escaped."""
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_if_changed(path: Path, text: str) -> None:
    """Write a text file atomically, unless it already has this content."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, which is not read into memory as a whole."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def check_data_root(folder: Path | None) -> Path | None:
    """The folder that holds the data sets, or None; a UserError if it does not exist."""
    if folder is not None and not folder.is_dir():
        raise UserError(
            f"data root '{folder}' does not exist; give the folder that holds the data sets"
        )
    return folder


def cache_folder() -> Path:
    """`$CUDT_CACHE`, or `~/.cache/cudt`: files that save time and can be deleted."""
    return Path(os.environ.get("CUDT_CACHE") or Path.home() / ".cache" / "cudt")


def file_name(text: str) -> str:
    """The text with every character replaced that is unusual in a file name."""
    return re.sub(r"[^\w.-]+", "_", text)
