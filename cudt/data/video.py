"""Clips, which are video files or folders of frames, decoded once into 8-bit grey frames of one
size.

The frames of each clip are a `.npy` file in `$CUDT_CACHE/frames` (default `~/.cache/cudt/frames`)
and read through memory maps. Its name has a hash of the source's paths, sizes and modification
times, so a file can be unused, but never out of date, and a hash of the frames. Deleting the files
is safe.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from filelock import FileLock
from PIL import Image

from cudt.data.hub import reading
from cudt.utils.device import survive_torchvision_mismatch
from cudt.utils.errors import UserError
from cudt.utils.files import cache_folder, replacing
from cudt.utils.text import track

survive_torchvision_mismatch()
from torchvision.transforms.v2 import functional  # noqa: E402

VIDEOS = (".avi", ".mp4", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v")
FRAMES = (".tif", ".tiff", ".jpg", ".jpeg", ".png", ".bmp")
_ADVICE = "download it again, or delete it to skip it"
Frames = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Clip:
    """A video (one file) or a sequence of frames (one file each)."""

    name: str
    """The path relative to the folder that was searched; unique there."""
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Footage:
    """The frames of a clip, 8 bit, (frames, height, width)."""

    name: str
    source: Frames | Path
    """The frames, or their file in the cache."""
    digest: str
    """A hash of the frames, independent of where they come from."""

    @property
    def frames(self) -> Frames:
        """The file is mapped anew for each access, because the number of open files is limited."""
        return np.load(self.source, "r") if isinstance(self.source, Path) else self.source


def find_clips(folder: Path) -> list[Clip]:
    """Every video and every folder of frames in a folder or below it, in natural order.

    Hidden files (`._001.tif`), folders of ground truth (`Test001_gt`) and other files are skipped.
    """
    clips = []
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for inner in sorted(folders, key=natural):
        within = inner.relative_to(folder)
        if any(part.startswith(".") or part.endswith("_gt") for part in within.parts):
            continue
        files = [path for path in sorted(inner.iterdir(), key=natural) if path.name[0] != "."]
        videos = [path for path in files if path.suffix.lower() in VIDEOS]
        frames = [path for path in files if path.suffix.lower() in FRAMES]
        clips += [Clip((within / path.name).as_posix(), (path,)) for path in videos]
        clips += [Clip(within.as_posix(), tuple(frames))] if frames else []
    return clips


def natural(path: Path) -> tuple[list[int | str], str]:
    """A sort key that puts 2.jpg before 10.jpg and gives 01.jpg and 1.jpg a fixed order."""
    parts = re.split(r"(\d+)", path.as_posix())
    return [int(part) if part.isdecimal() else part for part in parts], path.as_posix()


def prepare(clips: Sequence[Clip], size: int, what: str) -> list[Footage]:
    """The frames of all clips, decoded if they are not in the cache."""
    cache = cache_folder() / "frames"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".lock"):
        return [
            _footage(clip, size, cache) for clip in track(clips, len(clips), f"decoding {what}")
        ]


def digest_of(frames: Frames) -> str:
    """A hash of frames."""
    return hashlib.blake2b(frames.tobytes(), digest_size=16).hexdigest()


def _footage(clip: Clip, size: int, cache: Path) -> Footage:
    key = _key(clip, size)
    file = next(cache.glob(f"{key}-*.npy"), None)
    if file is None:
        with reading(clip.files[0], _ADVICE):
            frames = np.stack([_to_grey(frame, size) for frame in _decoded(clip)])
        file = cache / f"{key}-{digest_of(frames)}.npy"
        with replacing(file) as temporary, temporary.open("wb") as out:
            np.save(out, frames)
    return Footage(clip.name, file, file.stem.partition("-")[2])


def _key(clip: Clip, size: int) -> str:
    """A hash of everything that the frames depend on, without reading the source."""
    digest = hashlib.blake2b(f"{size} {clip.files[0].parent.resolve()}".encode(), digest_size=16)
    for file in clip.files:
        with reading(file, _ADVICE):
            facts = file.stat()
        digest.update(f"\0{file.name}\0{facts.st_size}\0{facts.st_mtime_ns}".encode())
    return digest.hexdigest()


def _decoded(clip: Clip) -> Iterator[Frames]:
    """The frames of a clip in colour, (height, width, 3)."""
    if clip.files[0].suffix.lower() in FRAMES:
        for file in clip.files:
            with reading(file, _ADVICE), Image.open(file) as image:
                if image.mode.startswith(("I", "F")):
                    raise UserError(f"{file}: expected an image of 8 bits; convert it")
                yield np.array(image.convert("RGB"))
        return
    # Damage is one line; the library would print hundreds.
    av.logging.set_level(av.logging.PANIC)
    with av.open(str(clip.files[0].absolute()), metadata_errors="replace") as video:
        for frame in video.decode(video=0):
            # The library invents the missing part of an incomplete frame.
            if frame.is_corrupt:
                raise UserError(f"{clip.files[0]}: a frame is incomplete; {_ADVICE}")
            yield frame.to_ndarray(format="rgb24")


def _to_grey(frame: Frames, size: int) -> Frames:
    """(height, width, 3) to (size, size)."""
    # As floats, which are rounded once: torchvision rounds 8-bit frames after each of the two
    # steps.
    pixels = torch.from_numpy(frame).permute(2, 0, 1).float()
    grey = functional.resize(functional.rgb_to_grayscale(pixels), [size, size], antialias=True)
    return grey[0].round().clamp(0, 255).to(torch.uint8).numpy()
