"""Clips decoded once, kept on disk, and read from there through memory maps.

Each clip has two files in `$CUDT_CACHE/frames` (default `~/.cache/cudt/frames`): its frames, and after them a line
about them (JSON). A clip is there when that line is, so that whatever a kill leaves behind is not taken for a clip;
all clips that were whole stay. The names are a hash of the source's paths, sizes and times of change, so that a
file can be superfluous but never stale. Deleting them costs time alone.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock

from cudt import clips, progress
from cudt.clips import Clip
from cudt.errors import DataWarning, UserError
from cudt.files import cache_folder, write_atomically, write_text

_FORMAT = "1"


@dataclass(frozen=True)
class Footage:
    """The frames of a clip, (frames, height, width), 8 bit; from the cache they are read when they are looked at."""

    name: str
    frames: np.ndarray[Any, Any]
    digest: str
    """Of the decoded frames: the same wherever, and from whatever copy of the source, they were decoded."""

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
    digest = hashlib.blake2b(f"{_FORMAT} {size}".encode(), digest_size=16)
    for file in clip.files:
        facts = file.stat()
        digest.update(f"\0{file.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def is_prepared(clip: Clip, size: int) -> bool:
    return _stored(key(clip, size)) is not None


def _paths(name: str) -> tuple[Path, Path]:
    return folder() / f"{name}.frames", folder() / f"{name}.json"


def _stored(name: str) -> dict[str, Any] | None:
    """What is known of a clip that is there and whole."""
    frames, line = _paths(name)
    try:
        facts = json.loads(line.read_text(encoding="utf-8"))
        whole = frames.stat().st_size == int(np.prod(facts["shape"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts if whole else None


def _decode(clip: Clip, size: int) -> None:
    """Decode a clip into the cache; several processes may want the same one."""
    name = key(clip, size)
    frames, line = _paths(name)
    frames.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder() / f"{name}.lock"):
        if _stored(name) is not None:
            return
        # Whoever holds the lock is alone: these are of writers that were killed.
        for leftover in folder().glob(f".{name}.*"):
            leftover.unlink(missing_ok=True)
        facts: dict[str, Any] = {"source": str(clip.path), "notes": []}
        write_atomically(frames, lambda file: _write_frames(clip, size, facts, file))
        write_text(line, json.dumps(facts, ensure_ascii=False) + "\n")


def _write_frames(clip: Clip, size: int, facts: dict[str, Any], file: IO[bytes]) -> None:
    count, digest = 0, hashlib.blake2b(digest_size=16)
    for frame in clips.decode(clip, size, facts["notes"].append):
        content = np.ascontiguousarray(frame).tobytes()
        digest.update(content)
        try:
            file.write(content)
        except OSError as error:
            raise UserError(
                f"{folder()}: {error.strerror}; decoded frames need {size * size} bytes each, "
                "and CUDT_CACHE names another folder for them"
            ) from None
        count += 1
    facts |= {"shape": [count, size, size], "digest": digest.hexdigest()}


def _open(clip: Clip, size: int) -> Footage:
    name = key(clip, size)
    facts = _stored(name)
    if facts is None:
        raise UserError(f"{clip.path}: it, or its frames in {folder()}, changed while they were read; try again")
    for note in facts["notes"]:
        warnings.warn(note, DataWarning, stacklevel=2)
    frames = np.memmap(_paths(name)[0], np.uint8, "r", shape=tuple(facts["shape"]))
    return Footage(clip.name, frames, facts["digest"])
