"""Video denoising: clips are cut into windows of T frames, and a model restores the clean window
from a noisy one.

Video tasks differ only in where their clips come from.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cudt.config import tasks as sections
from cudt.data import findings, frame_cache
from cudt.data.clips import Clip
from cudt.data.frame_cache import Footage
from cudt.data.splits import SEEN, SPLITS, OnDemand, Split
from cudt.tasks.base import Task
from cudt.utils.errors import DataWarning, UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from cudt.data.batching import Batch

#: The largest value of a pixel.
PEAK = 255.0


VideoConfig = sections.VideoSection


@dataclass(frozen=True)
class Window:
    """T consecutive frames of a clip, which are read when a batch is made."""

    id: str
    footage: Footage
    start: int
    length: int

    @property
    def frames(self) -> np.ndarray[Any, Any]:
        return self.footage.frames[self.start : self.start + self.length]


class VideoDenoising(Task):
    """f = (1/T)·‖X − Y‖²_F on the scale 0 to 255; the metrics are RMSE per pixel and PSNR."""

    version = 1
    metric_name = "RMSE"
    metric_of_mean = "root"
    higher_is_better = False
    has_pictures = True
    input_is_answer = True
    windows_of_clips = True

    def __init__(self, splits: Mapping[Split, list[Window]]) -> None:
        self._splits = splits
        self._notes: dict[str, int] = {}
        self._checked: set[Split] = set()

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Frames, height and width of a window."""
        n_frames, height, width = self._splits["train"][0].frames.shape
        return n_frames, height, width

    @property
    def n_frames(self) -> int:
        return self.shape[0]

    @property
    def height(self) -> int:
        return self.shape[1]

    @property
    def width(self) -> int:
        return self.shape[2]

    def read(self, splits: Sequence[Split]) -> None:
        for split in splits:
            self._splits[split]

    def tested_on(self, other: Task) -> VideoDenoising:
        if not isinstance(other, VideoDenoising):
            raise UserError("a video task can only be tested on other videos; name such a task")
        return VideoDenoising(
            OnDemand(SPLITS, lambda split: (other if split == "test" else self)._splits[split])
        )

    def examples(self, split: Split) -> Sequence[Window]:
        if split not in self._checked:
            self._checked.add(split)
            self._check(split)
        return self._splits[split]

    def notes(self) -> dict[str, int]:
        return dict(self._notes)

    def _check(self, split: Split) -> None:
        """Warn of clips that are also training clips."""
        training = self._clips("train")
        # Without validation clips, validation is another part of the training clips.
        own = [
            clip
            for clip in self._clips(split)
            if split != "train" and all(clip is not one for one in training)
        ]
        leaked = findings.leaked(
            [clip.digest for clip in own], [clip.digest for clip in training], "clips"
        )
        self._notes |= findings.report(split, [leaked])

    def _clips(self, split: Split) -> list[Footage]:
        """The clips of a split's windows, each once."""
        return [*{id(window.footage): window.footage for window in self._splits[split]}.values()]

    def collate(self, examples: Sequence[Window]) -> Batch:
        import numpy as np
        import torch

        frames = np.stack([window.frames for window in examples])
        return {"ids": [window.id for window in examples], "frames": torch.from_numpy(frames)}

    def losses(self, answer: Tensor, batch: Batch) -> Tensor:
        return (answer - batch["frames"]).square().sum((1, 2, 3)) / self.n_frames

    def scores(self, answer: Tensor, batch: Batch) -> Tensor:
        """The mean squared error per pixel."""
        return (answer - batch["frames"]).square().mean((1, 2, 3))

    def further_metrics(self, mean_score: float) -> dict[str, float]:
        """PSNR = 20·log₁₀(255 / RMSE), in dB."""
        return {"PSNR": 10 * math.log10(PEAK**2 / mean_score) if mean_score else math.inf}

    def reference_loss(self) -> float:
        """H·W times the variance of the training pixels: the loss of the best answer of one uniform
        grey.
        """
        import numpy as np

        count, total, squares = 0, 0, 0
        for window in self._splits["train"]:
            pixels: np.ndarray[Any, Any] = window.frames.astype(np.int64)
            count, total, squares = (
                count + pixels.size,
                total + pixels.sum(),
                squares + np.square(pixels).sum(),
            )
        return float(self.height * self.width * (squares / count - (total / count) ** 2))

    def fingerprint(self, splits: Sequence[Split]) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for split in splits:
            for window in self._splits[split]:
                digest.update(
                    f"{split} {window.id} {window.footage.digest} {window.start} {window.length}\n".encode()
                )
        return digest.hexdigest()

    def pictures(self, values: Tensor) -> np.ndarray[Any, Any]:
        import torch

        return values.detach().round().clamp(0, PEAK).to(torch.uint8).cpu().numpy()


def build_video_task(
    config: VideoConfig, footage: Mapping[Split, Sequence[Footage]]
) -> VideoDenoising:
    """The task on some clips; without validation clips, the end of each training clip is for
    validation.
    """
    whole = OnDemand(footage, lambda split: [_Part(clip, 0, len(clip)) for clip in footage[split]])
    divided = OnDemand(SEEN, lambda split: _hold_out(config, whole["train"])[split])

    def windows(split: Split) -> list[Window]:
        is_divided = split in divided and "validation" not in footage
        return _windows(config, split, (divided if is_divided else whole)[split])

    return VideoDenoising(OnDemand(SPLITS, windows))


@dataclass(frozen=True)
class _Part:
    """The part of a clip that belongs to one split."""

    footage: Footage
    start: int
    stop: int


def _hold_out(config: VideoConfig, clips: Sequence[_Part]) -> dict[Split, list[_Part]]:
    """The training and validation parts; a clip that is too short for both is for training."""
    ends = [round((1 - config.validation_share) * len(part.footage)) for part in clips]
    pairs = [
        (part, end if min(end, part.stop - end) >= config.frames else part.stop)
        for part, end in zip(clips, ends, strict=True)
    ]
    return {
        "train": [_Part(part.footage, 0, end) for part, end in pairs],
        "validation": [
            _Part(part.footage, end, part.stop) for part, end in pairs if end < part.stop
        ],
    }


def _windows(config: VideoConfig, split: Split, parts: Sequence[_Part]) -> list[Window]:
    import numpy as np

    stride = config.stride if split == "train" else config.frames
    windows = [window for part in parts for window in _cut(config.frames, stride, split, part)]
    if not windows:
        advice = " or raise task.validation_share" if split == "validation" else ""
        raise UserError(
            f"no {split} clip has {config.frames} frames (task.frames); lower it{advice}"
        )
    most = getattr(config.limit, split)
    if most is None or most >= len(windows):
        return windows
    chosen = np.random.default_rng(config.data_seed).permutation(len(windows))[:most]
    return [windows[index] for index in sorted(chosen)]


def _cut(length: int, stride: int, split: Split, part: _Part) -> Iterator[Window]:
    if part.stop - part.start < length:
        frames = part.stop - part.start
        warnings.warn(
            f"skipped {split} clip '{part.footage.name}': {frames} frames, and a window has "
            f"{length} (task.frames)",
            DataWarning,
            stacklevel=2,
        )
    for start in range(part.start, part.stop - length + 1, stride):
        yield Window(f"{split}/{part.footage.name}/{start}", part.footage, start, length)


def decoded(config: VideoConfig, clips: Mapping[Split, Sequence[Clip]]) -> OnDemand[list[Footage]]:
    """The frames of each split's clips, from the cache."""
    return OnDemand(
        clips,
        lambda split: frame_cache.prepare(clips[split], config.size, f"{config.name} {split}"),
    )
