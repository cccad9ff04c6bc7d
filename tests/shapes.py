"""Small generated videos."""

from __future__ import annotations

import torch

from cudt.config.tasks import Shapes
from cudt.data.loader import Batch
from cudt.tasks import toys
from cudt.tasks.video import VideoDenoising


def tiny_videos(size: int = 16, frames: int = 4) -> VideoDenoising:
    """Two windows for each of two clips in every split."""
    lengths = {"frames": frames, "stride": frames, "clip_length": 2 * frames}
    clips = {"train": 2, "validation": 2, "test": 2}
    section = Shapes.model_validate({"name": "shapes", "size": size, **lengths, **clips})
    return toys.shapes(section, None, None)


def batch_of(frames: torch.Tensor) -> Batch:
    return {"ids": [str(number) for number in range(len(frames))], "frames": frames}
