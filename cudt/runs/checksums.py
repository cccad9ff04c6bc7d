"""checksums.json: the SHA-256 of the files that cudt writes into a folder, so that a changed file
is noticed.

    {"format": 1, "files": {"ood.csv": ["<SHA-256>"], …}, "sha256": "<SHA-256 of `files` as
    canonical JSON>"}

A writer announces the new digest next to the old one, replaces the file, and drops the old digest,
so that a reader accepts the file at any moment, also after a kill. `null` among the digests says
that the file may be missing: it is being written for the first time. Names are relative to the
folder, with `/`.

Files without an entry are not checked, and neither are folders without checksums.json.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from cudt.utils.errors import DamagedFileError, UserError
from cudt.utils.files import digest_of, replacing, write_text
from cudt.utils.reading import ContentError

FILE = "checksums.json"
_FORMAT = 1
#: Files that a folder of cudt has next to its checksums.
_OF_CUDT = ("run.json", "sweep.json")
#: What only training writes again.
_OF_TRAINING = ("recipe.yaml", "run.json", "history.csv", "checkpoints")
#: Parts that are joined by `/`.
_NAME = re.compile(r"[^/\\\0]+(/[^/\\\0]+)*")
#: How often a reader starts again because the file or its digest was replaced meanwhile.
_ATTEMPTS = 20

#: The digests that each file may have; None if it may be missing.
Records = Mapping[str, tuple[str | None, ...]]
_Read = TypeVar("_Read")


def read_checked(folder: Path, name: str) -> bytes:
    """The content of a file; a DamagedFileError if it is not as it was written.

    A FileNotFoundError if it is missing and was never written; a DamagedFileError if it was.
    """
    return _checked(folder, name, _content)


def read_as(folder: Path, name: str, parse: Callable[[bytes], _Read]) -> _Read:
    """What `parse` makes of a file that is as it was written; a ContentError of it is a
    DamagedFileError.
    """
    content = read_checked(folder, name)
    try:
        return parse(content)
    except ContentError as error:
        raise damage(folder, name, str(error)) from None


def check_file(folder: Path, name: str) -> None:
    """The checks of `read_checked` for a file that is too large to be read into memory."""
    _checked(folder, name, lambda path: (digest_of(path), None))


def check_given(path: Path) -> None:
    """Refuse a recipe or search file that a run or a sweep wrote and that has changed since."""
    folder = path.absolute().parent
    for around, name in ((folder, path.name), (folder.parent, f"{folder.name}/{path.name}")):
        try:
            check_file(around, name)
        except DamagedFileError as error:
            if error.path.name == FILE:
                # Other programs write files of this name, too.
                if any((around / own).is_file() for own in _OF_CUDT):
                    raise
                continue
            advice = "restore it; for other settings, copy it to another folder and change the copy"
            raise DamagedFileError(error.path, error.reason, advice) from None


def write_checked(folder: Path, name: str, content: bytes) -> None:
    """Replace a file and record its digest; a file that already has this content is left alone."""
    if _records(folder).get(name) == (hashlib.sha256(content).hexdigest(),):
        with suppress(FileNotFoundError):
            if (folder / name).read_bytes() == content:
                return
    with replacing_checked(folder, name) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing_checked(folder: Path, name: str) -> Iterator[Path]:
    """A temporary file to be filled, which then replaces the file; its digest is recorded."""
    # Before anything is written: a damaged checksums.json must not be noticed after hours of work.
    _read_records(folder)
    with ExitStack() as held:
        with replacing(folder / name) as temporary:
            yield temporary
            new = digest_of(temporary)
            held.enter_context(_locked(folder))
            known = _read_records(folder).get(name)
            before = _digests_now(folder / name) if known is None else known
            _write_records(folder, {name: tuple(dict.fromkeys([*before, new]))})
        _write_records(folder, {name: (new,)})


def record_existing(folder: Path, *names: str) -> None:
    """Record files as they are now on disk."""
    with _locked(folder):
        _write_records(folder, {name: (digest_of(folder / name),) for name in names})


def forget(folder: Path, *names: str) -> None:
    """Remove the digests of files, which are then read unchecked; to be called before they are
    deleted.
    """
    # Not from the cache: within one tick of the clock, a replaced file can have the same inode,
    # times and size.
    if {*names} & {*_read_records(folder)}:
        with _locked(folder):
            _write_records(folder, dict.fromkeys(names))


def settle(folder: Path) -> None:
    """Drop the digests that killed writers announced or did not drop."""
    with suppress(DamagedFileError):
        undecided = {
            name: accepted for name, accepted in _read_records(folder).items() if len(accepted) > 1
        }
        if undecided:
            with _locked(folder):
                now = {name: _digests_now(folder / name) for name in undecided}
                known = {
                    name: digests for name, digests in now.items() if digests[0] in undecided[name]
                }
                _write_records(
                    folder,
                    {name: None if None in found else found for name, found in known.items()},
                )


def recorded(folder: Path) -> list[str]:
    """The files whose digests are known, in order."""
    return sorted(_records(folder))


def digests(folder: Path, name: str) -> tuple[str | None, ...]:
    """The digests that a file may have; none if they are not known."""
    return _records(folder).get(name, ())


def is_lost(folder: Path, name: str) -> bool:
    """Whether a file was written but is missing."""
    accepted = _records(folder).get(name)
    return accepted is not None and None not in accepted and not (folder / name).is_file()


def forget_lost(folder: Path, *names: str) -> None:
    """Forget those of some files that were written but are missing: the user has deleted them, to
    be written again.
    """
    forget(folder, *(name for name in names if is_lost(folder, name)))


def damaged_files(folder: Path) -> list[DamagedFileError]:
    """What is wrong with each file of a folder that is not as it was written."""
    found = []
    try:
        names = recorded(folder)
    except DamagedFileError as error:
        return [error]
    for name in names:
        try:
            check_file(folder, name)
        except FileNotFoundError:
            continue
        except DamagedFileError as error:
            found.append(error)
    return found


def _checked(folder: Path, name: str, read: Callable[[Path], tuple[str, _Read]]) -> _Read:
    known = _records(folder)
    for attempt in range(_ATTEMPTS):
        accepted = known.get(name)
        try:
            if not stat.S_ISREG((folder / name).stat().st_mode):
                raise damage(folder, name, "not a file")
            digest, content = read(folder / name)
            if accepted is None or digest in accepted:
                return content
        except FileNotFoundError:
            if accepted is None or None in accepted:
                raise
            digest = None
        # A writer may have replaced the file after its digest was read.
        known = _read_records(folder)
        if attempt and known.get(name) == accepted:
            break
    raise damage(
        folder, name, "missing" if digest is None else "its content is not what was written"
    )


def damage(folder: Path, name: str, reason: str) -> DamagedFileError:
    """The error about a file of a folder, with what to do."""
    return DamagedFileError(folder / name, reason, _advice(folder, name))


def _advice(folder: Path, name: str) -> str:
    if name == FILE:
        return "restore it, or delete it to read the files of this folder without a check"
    if name.split("/")[0] in _OF_TRAINING:
        return f"restore it, or delete {folder} to train again"
    return "restore it, or delete it and repeat the command that wrote it"


def _content(path: Path) -> tuple[str, bytes]:
    content = path.read_bytes()
    return hashlib.sha256(content).hexdigest(), content


def _locked(folder: Path) -> FileLock:
    """What writers of different files in one folder exclude each other by; each holds it for a
    moment.
    """
    return FileLock(folder / ".checksums.lock")


def _digests_now(path: Path) -> tuple[str | None, ...]:
    """The digest of a file that has no entry yet."""
    try:
        return (digest_of(path) if path.is_file() else None,)
    except FileNotFoundError:
        return (None,)


# ---------------------------------------------------------------- the file


def _records(folder: Path) -> Records:
    """The digests of a folder; read again only if the file was replaced, because a report asks for
    every table.
    """
    path = folder / FILE
    try:
        found = path.stat()
    except FileNotFoundError:
        return {}
    return _cached_records(path, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


@lru_cache(maxsize=256)
def _cached_records(path: Path, *_state: int) -> Records:
    return _read_records(path.parent)


def _read_records(folder: Path) -> Records:
    """The digests of a folder; none if it has no checksums.json."""
    try:
        content = (folder / FILE).read_bytes()
    except FileNotFoundError:
        return {}
    try:
        values = json.loads(content)
        files, own, written_in = values["files"], values["sha256"], values["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damage(folder, FILE, "not a list of checksums") from None
    if own != _digest_of_records(files):
        raise damage(folder, FILE, "its content is not what was written")
    if written_in != _FORMAT:
        raise UserError(
            f"{folder / FILE}: written in format {written_in}, and this version of cudt reads "
            f"format {_FORMAT}; "
            "use the version that wrote it"
        )
    if not _is_plain(files):
        raise damage(folder, FILE, "not a list of checksums")
    return {name: tuple(digests) for name, digests in files.items()}


def _is_plain(files: Any) -> bool:
    """Whether these are digests by name, and no name leads out of the folder: somebody else may
    have written them.
    """
    return isinstance(files, dict) and all(
        _NAME.fullmatch(name)
        and not {".", ".."} & {*name.split("/")}
        and isinstance(found, list)
        and all(one is None or isinstance(one, str) for one in found)
        for name, found in files.items()
    )


def _write_records(folder: Path, changes: Mapping[str, tuple[str | None, ...] | None]) -> None:
    """Change the digests of some files; None removes those of a file."""
    before = _read_records(folder)
    after = {
        name: digests for name, digests in {**before, **changes}.items() if digests is not None
    }
    if after != before:
        files = {name: list(digests) for name, digests in sorted(after.items())}
        values = {"format": _FORMAT, "files": files, "sha256": _digest_of_records(files)}
        write_text(folder / FILE, json.dumps(values, indent=1) + "\n")


def _digest_of_records(files: Any) -> str:
    return hashlib.sha256(
        json.dumps(files, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
