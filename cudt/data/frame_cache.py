"""Clips are decoded once, stored on disk, and read through memory maps.

Each clip has three files in `$CUDT_CACHE/frames` (default `~/.cache/cudt/frames`): its frames, a JSON file that
describes them, and an empty lock file. The JSON file is written last: a clip without it is decoded again, so a killed
process leaves no broken clips behind. It has a checksum of every frame, which is compared whenever the frame is read: a
damaged clip is decoded again. File names are a hash of the source's paths, sizes and modification times: a file can be
unused, but never out of date. Deleting the files is safe; the clips are decoded again when needed.

If the folder cannot be written, clips are decoded into memory.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from filelock import FileLock

from cudt.data import clips
from cudt.data.clips import Clip
from cudt.data.sources import reading, reason_of
from cudt.utils import progress
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.files import cache_folder, naming, write_atomically, write_text

if TYPE_CHECKING:
    import numpy as np

_FORMAT = "1"
#: Bytes of decoded frames that are held in memory if the cache cannot be written.
_MOST_IN_MEMORY = 2**30


@dataclass(frozen=True)
class Mapped:
    """Frames in the cache. The file is mapped only during an access, because the number of open files is limited."""

    path: Path
    shape: tuple[int, ...]
    checksums: Sequence[int]
    """The CRC-32 of each frame."""
    decode_again: Callable[[], None]
    """Replaces a damaged file."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice) -> np.ndarray[Any, Any]:
        if (frames := self._read(index)) is not None:
            return frames
        self.decode_again()
        if (frames := self._read(index)) is not None:
            warnings.warn(f"{self.path}: was damaged; the clip was decoded again", DataWarning, stacklevel=2)
            return frames
        raise UserError(f"{self.path}: deleted or changed while in use; run the command again to decode the clip again")

    def _read(self, index: slice) -> np.ndarray[Any, Any] | None:
        """The frames; None if they are not those that were decoded."""
        import numpy as np

        try:
            with naming(self.path):
                frames = np.memmap(self.path, np.uint8, "r", shape=self.shape)[index]
        except (FileNotFoundError, ValueError):
            return None
        expected = self.checksums[index]
        return frames if all(map(_is_frame, frames, expected)) else None


def _is_frame(frame: np.ndarray[Any, Any], checksum: int) -> bool:
    return zlib.crc32(frame.data) == checksum


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
    held: dict[Clip, Footage] = {}
    problem: OSError | None = None
    for clip in progress.track(missing, len(missing), f"decoding {what}"):
        try:
            if problem is None:
                _decode(clip, size)
        except OSError as error:
            problem = error
        if problem is not None:
            held[clip] = _in_memory(clip, size, _MOST_IN_MEMORY - _size(held), problem)
    if problem is not None:
        warnings.warn(
            f"{folder()}: {reason_of(problem)}; {what} is decoded into memory ({_size(held) / 1e6:.0f} MB), again by "
            "every command; set CUDT_CACHE to use another folder",
            DataWarning,
            stacklevel=2,
        )
    return [held[clip] if clip in held else _open(clip, size) for clip in sources]


def _size(held: Mapping[Clip, Footage]) -> int:
    return sum(math.prod(footage.frames.shape) for footage in held.values())


def key(clip: Clip, size: int) -> str:
    """A hash of everything the frames depend on, without reading the source."""
    # The folder is resolved once: resolving every frame would take longer than all the rest.
    folder = clip.files[0].parent.resolve()
    digest = hashlib.blake2b(f"{_FORMAT} {size} {folder}".encode("utf-8", "surrogateescape"), digest_size=16)
    for file in clip.files:
        with reading(file, "cannot be read", "download it again, or delete it to skip it"):
            facts = file.stat()
        digest.update(f"\0{file.name}\0{facts.st_size}\0{facts.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def is_prepared(clip: Clip, size: int) -> bool:
    try:
        return _stored(key(clip, size)) is not None
    except UserError:
        return False


def _is_intact(name: str) -> bool:
    facts = _stored(name)
    if facts is None:
        return False
    digest = hashlib.blake2b(digest_size=16)
    try:
        with _paths(name)[0].open("rb") as file:
            while content := file.read(2**20):
                digest.update(content)
    except OSError:
        return False
    return digest.hexdigest() == facts["digest"]


def _paths(name: str) -> tuple[Path, Path]:
    return folder() / f"{name}.frames", folder() / f"{name}.json"


def _stored(name: str) -> dict[str, Any] | None:
    """The description of a clip; None if it is not in the cache or not complete."""
    frames, line = _paths(name)
    try:
        facts = json.loads(line.read_text(encoding="utf-8"))
        seal = facts.pop("seal")
        whole = seal == _seal(facts) and frames.stat().st_size == math.prod(facts["shape"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return facts if whole else None


def _seal(facts: dict[str, Any]) -> str:
    """A hash of a description, so that a damaged one is noticed."""
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()


def _decode(clip: Clip, size: int) -> None:
    """Decode a clip into the cache, unless another process does so first; an OSError is one of the cache's folder."""
    name = key(clip, size)
    folder().mkdir(parents=True, exist_ok=True)
    with FileLock(folder() / f"{name}.lock"):
        if _stored(name) is None:
            _write(clip, size, name)


def _decode_again(clip: Clip, size: int, name: str) -> None:
    """Replace the frames of a clip, unless another process did so first."""
    if key(clip, size) != name:
        raise UserError(f"{clip.path}: changed while in use; run the command again")
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with FileLock(folder() / f"{name}.lock"):
            if not _is_intact(name):
                _write(clip, size, name)
    except OSError as error:
        raise _unusable(error, "damaged, and cannot be decoded again") from error


def _in_memory(clip: Clip, size: int, room: int, problem: OSError) -> Footage:
    """A clip without the cache; refused if it takes more bytes than there is room for."""
    import numpy as np

    notes: list[str] = []
    most = room // (size * size)
    frames = list(itertools.islice(clips.decode(clip, size, notes.append), most + 1))
    if len(frames) > most:
        raise _unusable(problem, f"decoded frames need {size * size} bytes each, too many for memory")
    _warn(notes)
    digest = hashlib.blake2b(b"".join(frame.tobytes() for frame in frames), digest_size=16)
    return Footage(clip.name, np.stack(frames), digest.hexdigest())


def _unusable(problem: OSError, consequence: str) -> Exception:
    """The error of a folder that the cache cannot do without."""
    return UserError(f"{folder()}: {reason_of(problem)}; {consequence}; set CUDT_CACHE to use another folder")


def _write(clip: Clip, size: int, name: str) -> None:
    frames, line = _paths(name)
    # An old description must not be paired with the new frames.
    line.unlink(missing_ok=True)
    facts: dict[str, Any] = {"source": str(clip.path), "notes": []}
    write_atomically(frames, lambda file: _write_frames(clip, size, facts, file))
    # json.dumps escapes everything beyond ASCII, because a file name may not be valid Unicode.
    write_text(line, json.dumps({**facts, "seal": _seal(facts)}) + "\n")


def _write_frames(clip: Clip, size: int, facts: dict[str, Any], file: IO[bytes]) -> None:
    import numpy as np

    checksums, digest = [], hashlib.blake2b(digest_size=16)
    for frame in clips.decode(clip, size, facts["notes"].append):
        content = np.ascontiguousarray(frame).tobytes()
        digest.update(content)
        checksums.append(zlib.crc32(content))
        file.write(content)
    facts |= {"shape": [len(checksums), size, size], "digest": digest.hexdigest(), "checksums": checksums}


def _open(clip: Clip, size: int) -> Footage:
    name = key(clip, size)
    facts = _stored(name)
    if facts is None:
        raise UserError(
            f"{clip.path}: the clip or its frames in {folder()} changed while they were read; run the command again"
        )
    _warn(facts["notes"])
    again = partial(_decode_again, clip, size, name)
    frames = Mapped(_paths(name)[0], tuple(facts["shape"]), facts["checksums"], again)
    return Footage(clip.name, frames, facts["digest"])


def _warn(notes: Iterable[str]) -> None:
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=3)
