"""Clips decoded once, kept on disk, and read from there through memory maps.

Each clip has two files in `$CUDT_CACHE/frames` (default `~/.cache/cudt/frames`), and an empty one as lock: its frames,
and after them a line about them (JSON). A clip is there when that line is, so that whatever a kill leaves behind is not
taken for a clip; all clips that were whole stay. The names are a hash of the source's paths, sizes and times of change,
so that a file can be superfluous but never stale. Deleting them costs time alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock

from cudt.data import clips
from cudt.data.clips import Clip
from cudt.utils import progress
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.files import cache_folder, write_atomically, write_text

_FORMAT = "1"


@dataclass(frozen=True)
class Mapped:
    """Frames in the cache, mapped while they are looked at: a map keeps its file open, and no process may open many."""

    path: Path
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice) -> np.ndarray[Any, Any]:
        try:
            return np.memmap(self.path, np.uint8, "r", shape=self.shape)[index]
        except (OSError, ValueError):
            raise UserError(f"{self.path}: gone while it was in use; start again to have it made again") from None


@dataclass(frozen=True)
class Footage:
    """The frames of a clip, (frames, height, width), 8 bit; from the cache they are read when they are looked at."""

    name: str
    frames: np.ndarray[Any, Any] | Mapped
    digest: str
    """Of the decoded frames, wherever their source lies."""

    def __len__(self) -> int:
        return len(self.frames)


def folder() -> Path:
    return cache_folder() / "frames"


def prepare(sources: Sequence[Clip], size: int, what: str) -> list[Footage]:
    """All the clips, decoded where they were not yet; a warning for each that is not as it should be."""
    missing = [clip for clip in sources if _stored(key(clip, size)) is None]
    for clip in progress.track(missing, len(missing), f"decoding {what}"):
        _decode(clip, size)
    return [_open(clip, size) for clip in sources]


def key(clip: Clip, size: int) -> str:
    """A hash of everything that the frames depend on, without reading the source."""
    # Resolving each of many frames takes longer than all the rest.
    folder = clip.files[0].parent.resolve()
    digest = hashlib.blake2b(f"{_FORMAT} {size} {folder}".encode("utf-8", "surrogateescape"), digest_size=16)
    for file in clip.files:
        try:
            facts = file.stat()
        except OSError as error:
            raise UserError(
                f"{file}: cannot be read ({error.strerror}); get it again, or delete it to go on without it"
            ) from None
        digest.update(f"\0{file.name}\0{facts.st_size}\0{facts.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def is_prepared(clip: Clip, size: int) -> bool:
    try:
        return _stored(key(clip, size)) is not None
    except UserError:
        return False


def _paths(name: str) -> tuple[Path, Path]:
    return folder() / f"{name}.frames", folder() / f"{name}.json"


def _stored(name: str) -> dict[str, Any] | None:
    """What is known of a clip that is there and whole."""
    frames, line = _paths(name)
    try:
        facts = json.loads(line.read_text(encoding="utf-8"))
        whole = frames.stat().st_size == math.prod(facts["shape"]) and {"notes", "digest"} <= facts.keys()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts if whole else None


def _decode(clip: Clip, size: int) -> None:
    """Decode a clip into the cache; several processes may want the same one."""
    name = key(clip, size)
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with FileLock(folder() / f"{name}.lock"):
            if _stored(name) is None:
                _write(clip, size, name)
    except OSError as error:
        # What is wrong with the source is told before it comes here.
        raise UserError(
            f"{folder()}: {error.strerror}; decoded frames need {size * size} bytes each, "
            "and CUDT_CACHE names another folder for them"
        ) from None


def _write(clip: Clip, size: int, name: str) -> None:
    frames, line = _paths(name)
    # Whoever holds the lock is alone: these are of writers that were killed.
    for leftover in folder().glob(f".{name}.*"):
        leftover.unlink(missing_ok=True)
    # A line about frames that are not whole must not stand beside the next ones.
    line.unlink(missing_ok=True)
    facts: dict[str, Any] = {"source": str(clip.path), "notes": []}
    write_atomically(frames, lambda file: _write_frames(clip, size, facts, file))
    # In ASCII, because a file's name need not be a text.
    write_text(line, json.dumps(facts) + "\n")


def _write_frames(clip: Clip, size: int, facts: dict[str, Any], file: IO[bytes]) -> None:
    count, digest = 0, hashlib.blake2b(digest_size=16)
    for frame in clips.decode(clip, size, facts["notes"].append):
        content = np.ascontiguousarray(frame).tobytes()
        digest.update(content)
        file.write(content)
        count += 1
    facts |= {"shape": [count, size, size], "digest": digest.hexdigest()}


def _open(clip: Clip, size: int) -> Footage:
    name = key(clip, size)
    facts = _stored(name)
    if facts is None:
        raise UserError(f"{clip.path}: it, or its frames in {folder()}, changed while they were read; try again")
    for note in facts["notes"]:
        warnings.warn(note, DataWarning, stacklevel=2)
    return Footage(clip.name, Mapped(_paths(name)[0], tuple(facts["shape"])), facts["digest"])
