"""Clips are decoded once, stored on disk, and read through memory maps.

Each clip has three files in `$CUDT_CACHE/frames` (default `~/.cache/cudt/frames`): its frames, a JSON file that
describes them, and an empty lock file. The JSON file is written last: a clip without it is decoded again, so a killed
process leaves no broken clips behind. File names are a hash of the source's paths, sizes and modification times: a file
can be unused, but never out of date. Deleting the files is safe; the clips are decoded again when needed.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from filelock import FileLock

from cudt.data import clips
from cudt.data.clips import Clip
from cudt.utils import progress
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.files import cache_folder, write_atomically, write_text

if TYPE_CHECKING:
    import numpy as np

_FORMAT = "1"


@dataclass(frozen=True)
class Mapped:
    """Frames in the cache. The file is mapped only during an access, because the number of open files is limited."""

    path: Path
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice) -> np.ndarray[Any, Any]:
        import numpy as np

        try:
            return np.memmap(self.path, np.uint8, "r", shape=self.shape)[index]
        except (OSError, ValueError):
            raise UserError(
                f"{self.path}: deleted or changed while in use; run the command again to decode the clip again"
            ) from None


@dataclass(frozen=True)
class Footage:
    """The frames of a clip, (frames, height, width), 8 bit; cached frames are read on access."""

    name: str
    frames: np.ndarray[Any, Any] | Mapped
    digest: str
    """A hash of the decoded frames, independent of where the source is."""

    def __len__(self) -> int:
        return len(self.frames)


def folder() -> Path:
    return cache_folder() / "frames"


def prepare(sources: Sequence[Clip], size: int, what: str) -> list[Footage]:
    """All clips, decoded if they are not in the cache; warns about damaged clips every time."""
    missing = [clip for clip in sources if _stored(key(clip, size)) is None]
    for clip in progress.track(missing, len(missing), f"decoding {what}"):
        _decode(clip, size)
    return [_open(clip, size) for clip in sources]


def key(clip: Clip, size: int) -> str:
    """A hash of everything the frames depend on, without reading the source."""
    # The folder is resolved once: resolving every frame would take longer than all the rest.
    folder = clip.files[0].parent.resolve()
    digest = hashlib.blake2b(f"{_FORMAT} {size} {folder}".encode("utf-8", "surrogateescape"), digest_size=16)
    for file in clip.files:
        try:
            facts = file.stat()
        except OSError as error:
            raise UserError(
                f"{file}: cannot be read ({error.strerror}); download it again, or delete it to skip it"
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
    """The description of a clip; None if it is not in the cache or not complete."""
    frames, line = _paths(name)
    try:
        facts = json.loads(line.read_text(encoding="utf-8"))
        whole = frames.stat().st_size == math.prod(facts["shape"]) and {"notes", "digest"} <= facts.keys()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts if whole else None


def _decode(clip: Clip, size: int) -> None:
    """Decode a clip into the cache, unless another process does so first."""
    name = key(clip, size)
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with FileLock(folder() / f"{name}.lock"):
            if _stored(name) is None:
                _write(clip, size, name)
    except OSError as error:
        # Problems of the source have raised a UserError already.
        raise UserError(
            f"{folder()}: {error.strerror}; decoded frames need {size * size} bytes each; "
            "set CUDT_CACHE to use another folder"
        ) from None


def _write(clip: Clip, size: int, name: str) -> None:
    frames, line = _paths(name)
    # We hold the lock, so these were left by writers that were killed.
    for leftover in folder().glob(f".{name}.*"):
        leftover.unlink(missing_ok=True)
    # An old description must not be paired with the new frames.
    line.unlink(missing_ok=True)
    facts: dict[str, Any] = {"source": str(clip.path), "notes": []}
    write_atomically(frames, lambda file: _write_frames(clip, size, facts, file))
    # json.dumps escapes everything beyond ASCII, because a file name may not be valid Unicode.
    write_text(line, json.dumps(facts) + "\n")


def _write_frames(clip: Clip, size: int, facts: dict[str, Any], file: IO[bytes]) -> None:
    import numpy as np

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
        raise UserError(
            f"{clip.path}: the clip or its frames in {folder()} changed while they were read; run the command again"
        )
    for note in facts["notes"]:
        warnings.warn(note, DataWarning, stacklevel=2)
    return Footage(clip.name, Mapped(_paths(name)[0], tuple(facts["shape"])), facts["digest"])
