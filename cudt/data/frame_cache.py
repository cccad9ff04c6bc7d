"""Clips are decoded once, stored on disk, and read through memory maps.

Each clip has three files in `$CUDT_CACHE/frames` (default `~/.cache/cudt/frames`): its frames, a
JSON file that describes them, and an empty lock file. The JSON file is written last: a clip without
it is decoded again, so a killed process leaves no broken clips behind. File names are a hash of the
source's paths, sizes and modification times: a file can be unused, but never out of date. Deleting
the files is safe; the clips are decoded again when needed.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from filelock import FileLock

from cudt.data import clips
from cudt.data.clips import Clip
from cudt.data.sources import reading
from cudt.utils import progress
from cudt.utils.errors import DataWarning
from cudt.utils.files import cache_folder, write_atomically, write_text

if TYPE_CHECKING:
    import numpy as np

_FORMAT = "1"


@dataclass(frozen=True)
class Mapped:
    """Frames in the cache. The file is mapped only during an access, because the number of open
    files is limited.
    """

    path: Path
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.memmap(self.path, np.uint8, "r", shape=self.shape)[index]


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
    missing = [clip for clip in sources if not is_prepared(clip, size)]
    for clip in progress.track(missing, len(missing), f"decoding {what}"):
        _decode(clip, size)
    return [_open(clip, size) for clip in sources]


def key(clip: Clip, size: int) -> str:
    """A hash of everything the frames depend on, without reading the source."""
    # The folder is resolved once: resolving every frame would take longer than all the rest.
    folder = clip.files[0].parent.resolve()
    digest = hashlib.blake2b(
        f"{_FORMAT} {size} {folder}".encode("utf-8", "surrogateescape"), digest_size=16
    )
    for file in clip.files:
        with reading(file, "cannot be read", "download it again, or delete it to skip it"):
            facts = file.stat()
        digest.update(
            f"\0{file.name}\0{facts.st_size}\0{facts.st_mtime_ns}".encode(
                "utf-8", "surrogateescape"
            )
        )
    return digest.hexdigest()


def is_prepared(clip: Clip, size: int) -> bool:
    return all(path.is_file() for path in _paths(key(clip, size)))


def _paths(name: str) -> tuple[Path, Path]:
    return folder() / f"{name}.frames", folder() / f"{name}.json"


def _decode(clip: Clip, size: int) -> None:
    """Decode a clip into the cache, unless another process does so first."""
    folder().mkdir(parents=True, exist_ok=True)
    name = key(clip, size)
    frames, description = _paths(name)
    with FileLock(folder() / f"{name}.lock"):
        if is_prepared(clip, size):
            return
        facts: dict[str, Any] = {"source": str(clip.path), "notes": []}
        write_atomically(frames, lambda file: _write_frames(clip, size, facts, file))
        # json.dumps escapes everything beyond ASCII, because a file name may not be valid Unicode.
        write_text(description, json.dumps(facts) + "\n")


def _write_frames(clip: Clip, size: int, facts: dict[str, Any], file: IO[bytes]) -> None:
    count, digest = 0, hashlib.blake2b(digest_size=16)
    for frame in clips.decode(clip, size, facts["notes"].append):
        content = frame.tobytes()
        digest.update(content)
        file.write(content)
        count += 1
    facts |= {"shape": [count, size, size], "digest": digest.hexdigest()}


def _open(clip: Clip, size: int) -> Footage:
    frames, description = _paths(key(clip, size))
    facts = json.loads(description.read_text(encoding="utf-8"))
    for note in facts["notes"]:
        warnings.warn(note, DataWarning, stacklevel=3)
    return Footage(clip.name, Mapped(frames, tuple(facts["shape"])), facts["digest"])
