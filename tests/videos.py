"""Small clips as files, and small generated videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from cudt.config.tasks import Shapes
from cudt.data.loader import Batch
from cudt.tasks import toys
from cudt.tasks.video import VideoDenoising

Frames = np.ndarray[Any, Any]


def noise(seed: int, *shape: int) -> Frames:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_frames(folder: Path, frames: Frames, suffix: str = "tif") -> Path:
    """`001.tif` and so on, of a size and mode that the frames have."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames, 1):
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


def tiny_videos(size: int = 16, frames: int = 4) -> VideoDenoising:
    """Two windows for each of two clips in every split."""
    lengths = {"frames": frames, "stride": frames, "clip_length": 2 * frames}
    clips = {"train": 2, "validation": 2, "test": 2}
    section = Shapes.model_validate({"name": "shapes", "size": size, **lengths, **clips})
    return toys.shapes(section, None, None)


def batch_of(frames: torch.Tensor) -> Batch:
    return {"ids": [str(number) for number in range(len(frames))], "frames": frames}
