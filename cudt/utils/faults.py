"""Faults of the machine (disk, memory, storage, lost folders), apart from faults of a run or a recipe.

A fault stops a command with one line that says what to change, and nothing is spent: a run is interrupted, a trial of a
sweep waits again, and the same command resumes.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudt.utils.errors import MachineFaultError, UserError

#: What to do about an errno that is the machine's fault; others are the user's, such as a missing file.
_ADVICE = {
    errno.ENOSPC: "free space on its file system ({free} left)",
    errno.EDQUOT: "free some of your disk quota there",
    errno.EFBIG: "raise the limit of the size of files (`ulimit -f`)",
    errno.EROFS: "make its file system writable",
    errno.EIO: "check the disk",
    errno.ENXIO: "check the disk",
    errno.ENODEV: "check the disk",
    errno.ESTALE: "mount its file system again",
    errno.ENOTCONN: "mount its file system again",
    errno.EHOSTDOWN: "mount its file system again",
    errno.EHOSTUNREACH: "mount its file system again",
    errno.ENETUNREACH: "mount its file system again",
    errno.ETIMEDOUT: "mount its file system again",
    errno.ENOLCK: "check the file system's locks, or use another folder",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "close other programs: the system has too many open files",
    errno.EAGAIN: "raise the limit of processes (`ulimit -u`)",
}
#: What libraries say when memory runs out.
_NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|bad_alloc|can't start new thread"
    r"|failed to map segment|unable to allocate|[A-Z]+_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
#: What SQLite says if its file cannot be written.
_NO_DATABASE = re.compile(r"disk is full|disk I/O error|readonly database")
#: What torch says of a process that loads data. Without memory it is killed; a crash has another signal.
_NO_WORKER = re.compile(r"DataLoader worker \(pid.*\) (is killed by signal: (Killed|Bus error)|exited unexpectedly$)")
_CRASHED_WORKER = re.compile(r"DataLoader worker \(pid.*\) is killed by signal")
#: What CUDA says of a GPU that fails, or that other processes have for themselves.
_NO_DEVICE = re.compile(
    r"uncorrectable (ECC|NVLink) error|GPU is lost|fallen off the bus|hardware stack error"
    r"|device\(s\) is/are busy or unavailable",
    re.IGNORECASE,
)
_MEMORY_ADVICE = (
    "close other programs, or take less memory: in training a larger training.accumulation, in "
    "evaluation a smaller evaluation.batch_size"
)
#: Bytes below which a process with a limit counts as out of memory: a library of this size could not be loaded.
_RESERVE = 64 * 2**20
_AGAIN = "and run the same command again"

#: Errnos that are also those of connections, which have no path.
_OF_CONNECTIONS = {errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT}

#: The data root, if it was there when the command started.
_expected: set[Path] = set()
#: The file systems on which this process has written a file.
_written: set[int] = set()


def machine_fault(error: BaseException) -> str | None:
    """One line about a fault of the machine: what failed, and what to change; None for any other error."""
    if isinstance(error, MachineFaultError):
        return str(error)
    if isinstance(error, UserError | FileNotFoundError) and (lost := _lost_folder()):
        return f"{lost}: this folder was there when the command started and is gone; mount it again {_AGAIN}"
    if isinstance(error, UserError):
        # A file that cannot be read is the user's, unless the disk is why.
        cause = error.__context__
        return _os_line(cause) if isinstance(cause, OSError) else None
    if is_out_of_memory(error):
        return f"{_memory_line(error)}; {_MEMORY_ADVICE}, {_AGAIN}"
    line = _os_line(error) if isinstance(error, OSError) else _library_line(error)
    if line is None and is_starved():
        # Libraries fail in many ways: half imported modules, errors without an exception.
        return f"out of memory on the host; {_MEMORY_ADVICE}, {_AGAIN}"
    return line


def is_memory_fault(error: BaseException) -> bool:
    """Whether a fault of the machine, or what it was raised for, is that memory did not suffice."""
    found: BaseException | None = error
    while found is not None:
        if is_out_of_memory(found) or _is_killed_worker(found):
            return True
        found = found.__cause__ or found.__context__
    return is_starved()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the host or of an accelerator did not suffice."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # torch has its own class for accelerators; the CPU's allocator and imports raise plain ones. Not for a UserError,
    # which may quote one.
    is_plain = isinstance(error, RuntimeError | ImportError) or type(error).__name__ == "OutOfMemoryError"
    return is_plain and _NO_MEMORY.search(str(error)) is not None


@contextmanager
def memory_advice(what: str, advice: str) -> Iterator[None]:
    """Where memory runs out in the block, raise a MachineFaultError that says what needed it, and what takes less."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MachineFaultError) or not is_out_of_memory(error):
            raise
        raise MachineFaultError(f"{what}: {_memory_line(error)}; {advice}, and run the command again") from error


def expect_folder(folder: Path | None) -> None:
    """Remember the data root that is there: errors because it is gone later are the machine's.

    It takes the place of that of a call before, which may have been deleted since.
    """
    _expected.clear()
    if folder is not None and _has_content(folder):
        _expected.add(folder.absolute())


def _lost_folder() -> Path | None:
    return next((folder for folder in sorted(_expected) if not _has_content(folder)), None)


def _has_content(folder: Path) -> bool:
    """Whether a folder is there: of one that was unmounted, an empty folder is left."""
    try:
        with os.scandir(folder) as entries:
            return any(entries)
    except OSError:
        return False


def is_starved() -> bool:
    """Whether the limit of this process's memory (`ulimit -v`) is all but used up."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (ImportError, OSError, MemoryError):
        return False
    return limit != resource.RLIM_INFINITY and limit - used < _RESERVE


def _memory_line(error: BaseException) -> str:
    """What ran out, with its size where the error has it: `out of memory on the GPU (tried to allocate 2.00 GiB)`."""
    text = str(error)
    is_accelerator = re.search(r"CUDA|_STATUS_", text) or type(error).__name__ == "OutOfMemoryError"
    where = "on the accelerator" if is_accelerator else "on the host"
    if found := re.search(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]iB)", text, re.IGNORECASE):
        return f"out of memory {where} (tried to allocate {_size(found[1], found[2])})"
    return f"out of memory {where}"


def _size(number: str, unit: str) -> str:
    return _megabytes(int(number)) if unit == "bytes" else f"{number} {unit}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _os_line(error: OSError) -> str | None:
    path = None if error.filename is None else Path(os.fsdecode(error.filename))
    if error.errno not in _ADVICE or not _is_of_machine(error, path):
        return None
    advice = _ADVICE[error.errno].format(free=_free(path))
    where = "" if path is None else f"{path}: "
    return f"{where}{os.strerror(error.errno).lower()}; {advice} {_AGAIN}"


def _is_of_machine(error: OSError, path: Path | None) -> bool:
    """Whether an error with advice is a fault of the machine; some errnos have other meanings as well."""
    if error.errno == errno.EROFS:
        # Read-only from the beginning: the folder was chosen so.
        return path is not None and _file_system(path) in _written
    if error.errno == errno.EAGAIN:
        # The terminal's, if it does not take the output at once, has other words.
        return error.strerror == os.strerror(errno.EAGAIN)
    return path is not None or error.errno not in _OF_CONNECTIONS


def note_written(path: Path) -> None:
    """Remember that the file system of a file can be written: that it is read-only later is the machine's fault."""
    if (found := _file_system(path)) is not None:
        _written.add(found)


def _file_system(path: Path) -> int | None:
    """The device of a path, or of the closest folder above it that exists."""
    for one in (path, *path.absolute().parents):
        try:
            return one.stat().st_dev
        except OSError:
            continue
    return None


def _free(path: Path | None) -> str:
    """The free space of the file system of a path, which need not exist."""
    folder = Path.cwd() if path is None else path.absolute()
    try:
        while not folder.is_dir():
            folder = folder.parent
        return _megabytes(shutil.disk_usage(folder).free)
    except OSError:
        return "nothing known"


def _library_line(error: BaseException) -> str | None:
    """Faults that torch's loader, CUDA, SQLite and its users (SQLAlchemy, Optuna) report in words."""
    if isinstance(error, RuntimeError) and _NO_DEVICE.search(str(error)):
        what = str(error).strip().splitlines()[0]
        return f"the accelerator failed ({what}); check it with `nvidia-smi`, or use another one, {_AGAIN}"
    if _is_killed_worker(error):
        why = "memory or shared memory (/dev/shm) did not suffice"
        return f"a process that loads data was killed: {why}; set loading.workers=0, {_AGAIN}"
    database = _sqlite_error(error)
    if database is None or not _NO_DATABASE.search(str(database)):
        return None
    advice = "free space on the file system of the sweep's folder, make it writable"
    return f"the sweep's storage: {database}; {advice} {_AGAIN}"


def _is_killed_worker(error: BaseException) -> bool:
    """Whether a process that loads data was killed; the signal may be in the cause only."""
    if not isinstance(error, RuntimeError) or not _NO_WORKER.search(str(error)):
        return False
    cause = str(error.__cause__)
    return not _CRASHED_WORKER.search(cause) or _NO_WORKER.search(cause) is not None


def _sqlite_error(error: BaseException | None) -> BaseException | None:
    """The error of SQLite itself: SQLAlchemy has it as `orig`, Optuna as the cause."""
    sqlite = sys.modules.get("sqlite3")
    while error is not None and sqlite is not None:
        if isinstance(error, sqlite.Error):
            return error
        error = getattr(error, "orig", None) or error.__cause__
    return None
