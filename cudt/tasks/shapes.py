"""Generated videos of shapes that drift over a textured background; needs no data.

Each clip has its own shapes and its own background, which does not move, as for a fixed camera.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cudt.config import tasks as sections
from cudt.data.frame_cache import Footage
from cudt.data.splits import Split
from cudt.tasks.video_denoising import VideoDenoising, build_video_task
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

Image: TypeAlias = "np.ndarray[Any, Any]"


Config = sections.Shapes


def make_clip(rng: np.random.Generator, length: int, size: int) -> Image:
    """A clip of two to four shapes that bounce off the edges, (length, size, size), 8 bit."""
    import numpy as np

    background = _texture(rng, size)
    rows, columns = np.mgrid[:size, :size] + 0.5
    shapes = [_Shape(rng, size) for _ in range(rng.integers(2, 5))]
    frames = []
    for time in range(length):
        frame = background.copy()
        for shape in shapes:
            inside = shape.covers(rows, columns, time)
            frame[inside] = shape.shade
        frames.append(frame.clip(0, 255).round().astype(np.uint8))
    return np.stack(frames)


def _texture(rng: np.random.Generator, size: int) -> Image:
    """A background: a sum of plane waves around a medium grey, with amplitudes that fall with the
    frequency.
    """
    import numpy as np

    rows, columns = np.mgrid[:size, :size] / size
    picture = np.full((size, size), rng.uniform(90, 140))
    for _ in range(12):
        frequency = rng.uniform(0.5, 12)
        angle, phase = rng.uniform(0, 2 * np.pi, 2)
        wave = np.sin(
            2 * np.pi * frequency * (rows * np.sin(angle) + columns * np.cos(angle)) + phase
        )
        picture += 28 / (1 + frequency / 2) * wave
    return picture


class _Shape:
    """A disc or a square with a position, a speed and a shade of grey."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self.size = size
        self.is_disc = bool(rng.integers(2))
        self.radius = rng.uniform(0.06, 0.14) * size
        self.centre = rng.uniform(self.radius, size - self.radius, 2)
        self.speed = rng.uniform(-0.03, 0.03, 2) * size
        self.shade = rng.choice([rng.uniform(10, 50), rng.uniform(200, 250)])

    def covers(self, rows: Image, columns: Image, time: int) -> Image:
        import numpy as np

        row, column = self._bounced(self.centre + time * self.speed)
        down, across = np.abs(rows - row), np.abs(columns - column)
        distance = np.hypot(down, across) if self.is_disc else np.maximum(down, across)
        return distance <= self.radius

    def _bounced(self, position: Image) -> Image:
        """The position reflected back into the image."""
        import numpy as np

        room = self.size - 2 * self.radius
        folded = np.mod(position - self.radius, 2 * room)
        return self.radius + np.minimum(folded, 2 * room - folded)


def build(config: Config, data_root: Path | None, pretrained: str | None) -> VideoDenoising:
    """The task; it generates its clips, so it needs neither data root nor tokenizer."""
    import numpy as np

    if config.clip_length < config.frames:
        raise UserError(
            f"task.clip_length = {config.clip_length}: shorter than task.frames = "
            f"{config.frames}; raise it"
        )
    rng = np.random.default_rng(config.data_seed)
    # Training clips come last, so that their number does not change the others.
    sizes: dict[Split, int] = {
        "test": config.test,
        "validation": config.validation,
        "train": config.train,
    }
    footage = {
        split: [_footage(rng, config, f"clip-{n}") for n in range(size)]
        for split, size in sizes.items()
    }
    return build_video_task(config, footage)


def _footage(rng: np.random.Generator, config: Config, name: str) -> Footage:
    frames = make_clip(rng, config.clip_length, config.size)
    return Footage(name, frames, hashlib.blake2b(frames.tobytes(), digest_size=16).hexdigest())
