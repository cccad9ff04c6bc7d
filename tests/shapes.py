"""Small generated videos, and a recipe for them: seconds of training, every path through the
code."""

from __future__ import annotations

from pathlib import Path

import torch

from cudt.config.tasks import Shapes
from cudt.data.loader import Batch
from cudt.tasks import toys
from cudt.tasks.video import VideoDenoising


def tiny_videos(size: int = 16, frames: int = 4) -> VideoDenoising:
    """Two windows for each of two clips in every split."""
    config = Shapes(
        name="shapes",
        size=size,
        frames=frames,
        stride=frames,
        clip_length=2 * frames,
        train=2,
        validation=2,
        test=2,
    )
    return toys.shapes(config, None, None)


def batch_of(frames: torch.Tensor) -> Batch:
    return {"ids": [str(number) for number in range(len(frames))], "frames": frames}


def write_recipe(folder: Path, name: str, model: str) -> Path:
    """A recipe for generated videos of 16 × 16 pixels with the lines of a model's section."""
    path = folder / f"{name}.yaml"
    path.write_text(
        f"""reproduces: nothing
needs: nothing
expect: nothing
task: {{name: shapes, size: 16, frames: 4, stride: 4, clip_length: 8, train: 4, validation: 2, test: 3}}
model: {model}
descent:
  alpha: 0.1
  form: log
training:
  epochs: 2
  batch_size: 2
  learning_rate: 1e-3
  log_every: 1
noise:
  gamma_train: 0.1
evaluation:
  gammas: [0, 0.5, 1]
""",
        encoding="utf-8",
    )
    return path
