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

#: Kinds of containers that a video can be, whatever its name. FFmpeg also reads playlists, which
#: name other files and addresses on the network.
_ONLY_VIDEO = {
    "format_whitelist": "avi,mov,mp4,matroska,webm,mpeg,mpegts,mpegvideo,m4v,h264,hevc,asf,flv,ogg",
    "protocol_whitelist": "file",
}
_ADVICE = "download it again, or delete it to skip it"
Frames = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Clip:
    """A video (one file) or a sequence of frames (one file each)."""

    name: str
    """The path relative to the folder that was searched; unique there."""
    files: tuple[Path, ...]

    @property
    def is_video(self) -> bool:
        return self.files[0].suffix.lower() in VIDEOS


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


def find_clips(folder: Path, suffixes: Sequence[str] = (*VIDEOS, *FRAMES)) -> list[Clip]:
    """Every video and every folder of frames in a folder or below it, in natural order.

    Hidden files (`._001.tif`), folders of ground truth (`Test001_gt`) and other files are skipped.
    """
    clips = []
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for inner in sorted(folders, key=natural):
        within = inner.relative_to(folder)
        if any(part.startswith(".") or part.endswith("_gt") for part in within.parts):
            continue
        files = [
            path
            for path in sorted(inner.iterdir(), key=natural)
            if path.suffix.lower() in suffixes and not path.name.startswith(".")
        ]
        videos = [path for path in files if path.suffix.lower() in VIDEOS]
        clips += [Clip((within / path.name).as_posix(), (path,)) for path in videos]
        if frames := tuple(path for path in files if path not in videos):
            clips.append(Clip(within.as_posix(), frames))
    return clips


def natural(path: Path) -> tuple[list[tuple[int, int | str]], str]:
    """A sort key that puts 2.jpg before 10.jpg and gives 01.jpg and 1.jpg a fixed order."""
    parts = filter(None, re.split(r"(\d+)", path.as_posix()))
    keys: list[tuple[int, int | str]] = [
        (0, int(part)) if part.isdecimal() else (1, part) for part in parts
    ]
    return keys, path.as_posix()


def prepare(clips: Sequence[Clip], size: int, what: str) -> list[Footage]:
    """The frames of all clips, decoded if they are not in the cache."""
    missing = [clip for clip in clips if _cached(clip, size) is None]
    for clip in track(missing, len(missing), f"decoding {what}"):
        _decode(clip, size)
    return [footage for clip in clips if (footage := _cached(clip, size))]


def digest_of(frames: Frames) -> str:
    """A hash of frames."""
    return hashlib.blake2b(frames.tobytes(), digest_size=16).hexdigest()


def _cached(clip: Clip, size: int) -> Footage | None:
    file = next(_cache().glob(f"{_key(clip, size)}-*.npy"), None)
    return Footage(clip.name, file, file.stem.partition("-")[2]) if file else None


def _cache() -> Path:
    return cache_folder() / "frames"


def _key(clip: Clip, size: int) -> str:
    """A hash of everything that the frames depend on, without reading the source."""
    digest = hashlib.blake2b(f"{size} {clip.files[0].parent.resolve()}".encode(), digest_size=16)
    for file in clip.files:
        with reading(file, _ADVICE):
            facts = file.stat()
        digest.update(f"\0{file.name}\0{facts.st_size}\0{facts.st_mtime_ns}".encode())
    return digest.hexdigest()


def _decode(clip: Clip, size: int) -> None:
    """Decode a clip into the cache, unless another process does so first."""
    _cache().mkdir(parents=True, exist_ok=True)
    with FileLock(_cache() / ".lock"):
        if _cached(clip, size) is None:
            read = _video_frames(clip.files[0]) if clip.is_video else _image_frames(clip.files)
            frames = np.stack([_to_grey(frame, size) for frame in read])
            file = _cache() / f"{_key(clip, size)}-{digest_of(frames)}.npy"
            with replacing(file) as temporary, temporary.open("wb") as out:
                np.save(out, frames)


def _to_grey(frame: Frames, size: int) -> Frames:
    """(height, width, 3) to (size, size)."""
    # As floats, which are rounded once: torchvision rounds 8-bit frames after each of the two
    # steps.
    pixels = torch.from_numpy(frame).permute(2, 0, 1).float()
    grey = functional.resize(functional.rgb_to_grayscale(pixels), [size, size], antialias=True)
    return grey[0].round().clamp(0, 255).to(torch.uint8).numpy()


def _image_frames(files: Sequence[Path]) -> Iterator[Frames]:
    for file in files:
        with reading(file, _ADVICE), Image.open(file) as image:
            if getattr(image, "n_frames", 1) > 1 or image.mode.startswith(("I", "F")):
                raise UserError(f"{file}: expected one image of 8 bits; convert it")
            yield np.array(image.convert("RGB"))


def _video_frames(file: Path) -> Iterator[Frames]:
    # Damage is one line; the library would print hundreds.
    av.logging.set_level(av.logging.PANIC)
    count = 0
    # As an absolute path: the part of a relative one before a colon would be taken for a protocol.
    with (
        reading(file, _ADVICE),
        av.open(
            str(file.absolute()), container_options=_ONLY_VIDEO, metadata_errors="replace"
        ) as container,
    ):
        for packet in container.demux(video=0):
            frames = packet.decode()
            # The library invents the missing part of an incomplete frame.
            if packet.is_corrupt or any(frame.is_corrupt for frame in frames):
                raise UserError(f"{file}, frame {count + len(frames)}: incomplete; {_ADVICE}")
            for frame in frames:
                count += 1
                yield frame.to_ndarray(format="rgb24")
    if not count:
        raise UserError(f"{file}: no frame can be decoded; {_ADVICE}")
