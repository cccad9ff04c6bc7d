"""Clips, which are video files or folders of frames: find them, and decode them into 8-bit grey
frames of one size.

Errors name the file. Damage that leaves usable frames is a note; everything else is an error.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cudt.data.sources import reading, reason_of
from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

VIDEOS = (".avi", ".mp4", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v")
FRAMES = (".tif", ".tiff", ".jpg", ".jpeg", ".png", ".bmp")

#: Kinds of containers that a video can be, whatever its name. FFmpeg also reads playlists, which
#: name other files and addresses on the network.
_ONLY_VIDEO = {
    "format_whitelist": "avi,mov,mp4,matroska,webm,mpeg,mpegts,mpegvideo,m4v,h264,hevc,asf,flv,ogg,dv",
    "protocol_whitelist": "file",
}

Frame: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Note = Callable[[str], None]


@dataclass(frozen=True)
class Clip:
    """A video (one file) or a sequence of frames (one file each)."""

    name: str
    """The path relative to the folder that was searched; unique there."""
    files: tuple[Path, ...]

    @property
    def is_video(self) -> bool:
        return self.files[0].suffix.lower() in VIDEOS

    @property
    def path(self) -> Path:
        return self.files[0] if self.is_video else self.files[0].parent


def find_clips(folder: Path, suffixes: Sequence[str] = (*VIDEOS, *FRAMES)) -> list[Clip]:
    """Every video and every folder of frames in a folder or below it, in natural order.

    Hidden files (`._001.tif`, `.DS_Store`), folders of ground truth (`Test001_gt`) and other files
    are skipped.
    """
    clips = []
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for inner in sorted(
        (path for path in folders if not _is_clutter(path.relative_to(folder))), key=natural
    ):
        # A broken link is kept: it is reported as a file that cannot be read, instead of silently
        # losing a frame.
        files = [
            path for path in inner.iterdir() if not path.is_dir() and not path.name.startswith(".")
        ]
        files = sorted((path for path in files if path.suffix.lower() in suffixes), key=natural)
        videos = [path for path in files if path.suffix.lower() in VIDEOS]
        clips += [Clip(_name(path.relative_to(folder)), (path,)) for path in videos]
        if frames := tuple(path for path in files if path.suffix.lower() not in VIDEOS):
            clips.append(Clip(_name(inner.relative_to(folder)), frames))
    return clips


def natural(path: Path) -> tuple[list[tuple[int, int | str]], str]:
    """A sort key that puts 2.jpg before 10.jpg and gives 01.jpg and 1.jpg a fixed order."""
    parts = re.split(r"(\d+)", path.as_posix())
    return [
        (0, int(part)) if part.isdecimal() else (1, part) for part in parts if part
    ], path.as_posix()


def _name(relative: Path) -> str:
    """The path as valid Unicode, even if the file name is not; `.` for frames in the folder
    itself.
    """
    return relative.as_posix().encode("utf-8", "backslashreplace").decode()


def _is_clutter(relative: Path) -> bool:
    return any(part.startswith(".") or part.endswith("_gt") for part in relative.parts)


def decode(clip: Clip, size: int, note: Note) -> Iterator[Frame]:
    """The frames of a clip, (size, size) each; `note` is called with every recoverable problem."""
    frames = _video_frames(clip.files[0], note) if clip.is_video else _image_frames(clip.files)
    shrink = _to_grey(size)
    sizes: dict[str, None] = {}
    for frame in frames:
        sizes[f"{frame.shape[1]}×{frame.shape[0]}"] = None
        yield shrink(frame)
    if len(sizes) > 1:
        note(
            f"{clip.path}: frames of {len(sizes)} sizes ({', '.join(sizes)}); all were resized "
            f"to {size}×{size}"
        )


def _to_grey(size: int) -> Callable[[Frame], Frame]:
    """(height, width, 3) to (size, size)."""
    survive_torchvision_mismatch()
    import torch
    from torchvision.transforms.v2 import functional

    def shrink(frame: Frame) -> Frame:
        # As floats, which are rounded once: torchvision rounds 8-bit frames after each of the two
        # steps.
        pixels = torch.from_numpy(frame).permute(2, 0, 1).float()
        grey = functional.resize(functional.rgb_to_grayscale(pixels), [size, size], antialias=True)
        return grey[0].round().clamp(0, 255).to(torch.uint8).numpy()

    return shrink


def _image_frames(files: Sequence[Path]) -> Iterator[Frame]:
    for file in files:
        with reading(file, "cannot be read", "download it again, or delete it to skip this frame"):
            yield _image_frame(file)


def _image_frame(file: Path) -> Frame:
    import numpy as np
    from PIL import Image

    with warnings.catch_warnings():
        # Damage is found when the image is read.
        warnings.simplefilter("ignore")
        with Image.open(file) as image:
            if getattr(image, "n_frames", 1) > 1:
                raise UserError(
                    f"{file}: {image.n_frames} images in one file; save each one as a separate file"
                )
            if image.mode.startswith(("I", "F")):
                raise UserError(
                    f"{file}: not an 8-bit image (Pillow mode '{image.mode}'); convert it to 8 bits"
                )
            return np.array(image.convert("RGB"))


def _video_frames(file: Path, note: Note) -> Iterator[Frame]:
    """The frames of a video; a damaged file gives those before the damage."""
    import av

    # We report damage in one line; the library would print hundreds.
    av.logging.set_level(av.logging.PANIC)
    count, announced, reason = 0, 0, "frames are missing"
    try:
        # As an absolute path: in a relative one, the part before a colon would be taken for a
        # protocol.
        with av.open(
            str(file.absolute()), container_options=_ONLY_VIDEO, metadata_errors="replace"
        ) as container:
            if not container.streams.video:
                raise UserError(f"{file}: contains no video stream; delete it to skip it")
            stream = container.streams.video[0]
            announced = stream.frames
            for frame in _whole_frames(container.demux(stream)):
                count += 1
                yield frame.to_ndarray(format="rgb24")
    except (
        Exception
    ) as error:  # PyAV raises errors of its own and, for strange pixel formats, Python's
        if isinstance(error, UserError):
            raise
        announced, reason = max(announced, count + 1), reason_of(error)
    if not count:
        raise UserError(
            f"{file}: cannot be decoded ({reason}); download it again, or delete it to skip this "
            "clip"
        )
    if count < announced:
        note(
            f"{file}: damaged ({reason}); using {count} of {announced} frames; download it again "
            "to use all"
        )


class _DamageError(Exception):
    pass


def _whole_frames(packets: Iterable[Any]) -> Iterator[Any]:
    """Frames up to the first incomplete one: the library invents its missing part, and later frames
    depend on it.
    """
    for packet in packets:
        if packet.is_corrupt:
            raise _DamageError("incomplete frame")
        for frame in packet.decode():
            if frame.is_corrupt:
                raise _DamageError("incomplete frame")
            yield frame
