"""Small clips as files, for tests that read video."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

Frames = np.ndarray[Any, Any]


def noise(seed: int, *shape: int) -> Frames:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_frames(folder: Path, frames: Frames, suffix: str = "tif", first: int = 1) -> Path:
    """`001.tif` and so on, of a size and mode that the frames have."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames, first):
        Image.fromarray(frame).save(folder / f"{number:03d}.{suffix}")
    return folder


def write_video(path: Path, frames: Frames, codec: str = "mpeg4", pixels: str = "yuv420p") -> Path:
    """A video of colour frames, (frames, height, width, 3)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=25)
        _, stream.height, stream.width, _ = frames.shape
        stream.pix_fmt = pixels
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path


def drift(seed: int, length: int, height: int = 32, width: int = 48) -> Frames:
    """A colour picture that moves a pixel to the side with each frame."""
    picture = noise(seed, height, width, 3)
    return np.stack([np.roll(picture, step, axis=1) for step in range(length)])


# ---------------------------------------------------------------- published sets, as downloaded


def write_ucsd(root: Path) -> None:
    base = root / "ucsd" / "UCSD_Anomaly_Dataset.v1p2"
    for walkway, height, width in (("UCSDped1", 16, 24), ("UCSDped2", 24, 36)):
        for number, length in ((1, 12), (2, 10), (10, 11)):
            frames = noise(number, length, height, width)
            clip = write_frames(base / walkway / "Train" / f"Train{number:03d}", frames)
            (clip / "._001.tif").write_bytes(b"\x00\x05\x16\x07")
        write_frames(base / walkway / "Test" / "Test001", noise(7, 9, height, width))
        write_frames(base / walkway / "Test" / "Test001_gt", noise(8, 9, height, width), "bmp")


def write_avenue(root: Path) -> None:
    base = root / "avenue" / "Avenue Dataset"
    for name, length in (("01", 12), ("02", 10), ("10", 11)):
        write_video(base / "training_videos" / f"{name}.avi", drift(length, length))
    write_video(base / "testing_videos" / "01.avi", drift(9, 9))
    (base / "training_vol").mkdir()


def write_shanghaitech(root: Path) -> None:
    base = root / "shanghaitech"
    for name, length in (("01_001", 12), ("01_002", 10), ("01_010", 11)):
        write_video(base / "training" / "videos" / f"{name}.avi", drift(length, length))
    write_frames(base / "testing" / "frames" / "01_0014", noise(1, 9, 24, 36, 3), "jpg", first=0)
