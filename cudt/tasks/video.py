"""Video denoising: clips are cut into windows of T frames, and a model restores the clean window
from a noisy one. Video tasks differ only in where their clips come from.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cudt.config.tasks import Folder, Ucsd, VideoSection
from cudt.data import video as data
from cudt.data.hub import DEFAULT_ROOT
from cudt.data.loader import Batch
from cudt.data.video import Clip, Footage, Frames
from cudt.tasks.base import SPLITS, Split, Task, warn_of_leaks
from cudt.utils.errors import DataWarning, UserError

#: The largest value of a pixel.
PEAK = 255.0


_UCSD = "http://www.svcl.ucsd.edu/projects/anomaly/dataset.htm"
_AVENUE = "http://www.cse.cuhk.edu.hk/leojia/projects/detectabnormal/dataset.html"
_SHANGHAITECH = "https://svip-lab.github.io/dataset/campus_dataset.html"
#: Published sets by task, UCSD by subset: folder below the data root, those of the training and the
#: test clips in it, homepage.
PUBLISHED = {
    "ped1": ("ucsd", "UCSDped1/Train", "UCSDped1/Test", _UCSD),
    "ped2": ("ucsd", "UCSDped2/Train", "UCSDped2/Test", _UCSD),
    "avenue": ("avenue", "training_videos", "testing_videos", _AVENUE),
    "shanghaitech": ("shanghaitech", "training/videos", "testing/frames", _SHANGHAITECH),
}


@dataclass(frozen=True)
class Window:
    """T consecutive frames of a clip, which are read when a batch is made."""

    id: str
    footage: Footage
    start: int
    length: int

    @property
    def frames(self) -> Frames:
        return self.footage.frames[self.start : self.start + self.length]


class VideoDenoising(Task):
    """f = (1/T)·‖X − Y‖²_F on the scale 0 to 255; the metric is the RMSE per pixel."""

    metric_name = "RMSE"
    metric_of_mean = "root"
    higher_is_better = False
    has_pictures = True
    windows_of_clips = True

    def __init__(self, config: VideoSection, footage: Callable[[Split], Sequence[Footage]]) -> None:
        self._config, self._footage = config, functools.cache(footage)
        # Without validation clips, validation is the end of each training clip.
        self._has_validation = getattr(config, "validation", None) is not None
        self._examples: dict[Split, list[Window]] = {}
        self.n_frames = config.frames
        self.height = self.width = config.size

    def tested_on(self, other: Task) -> VideoDenoising:
        assert isinstance(other, VideoDenoising)
        parts = {"test": other}
        return VideoDenoising(self._config, lambda split: parts.get(split, self)._footage(split))

    def examples(self, split: Split) -> Sequence[Window]:
        if split not in self._examples:
            self._examples[split] = self._windows(split)
            if split == "test" or (split == "validation" and self._has_validation):
                own, train = map(self._footage, (split, "train"))
                warn_of_leaks(split, [one.digest for one in own], [one.digest for one in train])
        return self._examples[split]

    def _windows(self, split: Split) -> list[Window]:
        """The windows of a split: a stride apart in training, otherwise without overlap."""
        config, found = self._config, list[Window]()
        is_cut, held_out = not self._has_validation and split != "test", split == "validation"
        for clip in self._footage("train" if is_cut else split):
            start, stop = 0, len(clip.frames)
            if is_cut:
                end = round((1 - config.validation_share) * stop)
                # A clip that is too short for both parts is for training.
                if min(end, stop - end) >= config.frames:
                    start, stop = (end, stop) if held_out else (0, end)
                elif held_out:
                    continue
            if stop - start < config.frames:
                message = f"skipped {split} clip '{clip.name}': shorter than task.frames"
                warnings.warn(message, DataWarning, stacklevel=2)
            stride = config.stride if split == "train" else config.frames
            found += [
                Window(f"{split}/{clip.name}/{first}", clip, first, config.frames)
                for first in range(start, stop - config.frames + 1, stride)
            ]
        if not found:
            raise UserError(
                f"no {split} clip has {config.frames} frames; lower task.frames, or change "
                "task.validation_share"
            )
        order = np.random.default_rng(config.data_seed).permutation(len(found))
        return [found[index] for index in sorted(order[: getattr(config.limit, split)])]

    def collate(self, examples: Sequence[Window]) -> Batch:
        frames = np.stack([window.frames for window in examples])
        return {"ids": [window.id for window in examples], "frames": torch.from_numpy(frames)}

    def losses(self, answer: Tensor, batch: Batch) -> Tensor:
        return (answer - batch["frames"]).square().sum((1, 2, 3)) / self.n_frames

    def scores(self, answer: Tensor, batch: Batch) -> Tensor:
        """The mean squared error per pixel."""
        return (answer - batch["frames"]).square().mean((1, 2, 3))

    def reference_loss(self) -> float:
        """H·W times the variance of the training pixels: the loss of the best answer of one uniform
        grey.
        """
        counts: Frames = np.zeros(256, np.int64)
        for window in self.examples("train"):
            counts += np.bincount(window.frames.ravel(), minlength=256)
        n, total, squares = (int(counts @ np.arange(256) ** power) for power in range(3))
        return self.height * self.width * (squares / n - (total / n) ** 2)

    def fingerprint(self, splits: Sequence[Split]) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for split in splits:
            for one in self.examples(split):
                line = f"{split} {one.id} {one.footage.digest} {one.start} {one.length}\n"
                digest.update(line.encode())
        return digest.hexdigest()

    def pictures(self, values: Tensor) -> Frames:
        return values.detach().round().clamp(0, PEAK).to(torch.uint8).cpu().numpy()


# ---------------------------------------------------------------- where clips come from


def build(config: VideoSection, data_root: Path | None, pretrained: str | None) -> VideoDenoising:
    """The task on the clips of a published dataset or of your own folders."""
    has_validation = isinstance(config, Folder) and config.validation is not None
    splits: tuple[Split, ...] = SPLITS if has_validation else ("train", "test")
    clips = {split: _clips(config, split, data_root) for split in splits}

    def footage(split: Split) -> list[Footage]:
        return data.prepare(clips[split], config.size, f"{config.name} {split}")

    return VideoDenoising(config, footage)


def _clips(config: VideoSection, split: Split, data_root: Path | None) -> list[Clip]:
    """The clips of a split; a UserError that says how to get them if there are none."""
    root, prefix = data_root or DEFAULT_ROOT, ""
    if isinstance(config, Folder):
        part, bases, how = getattr(config, split), [root, Path()], " or the current folder"
    else:
        subset = config.subset if isinstance(config, Ucsd) else config.name
        folder, train, test, homepage = PUBLISHED[subset]
        part, root = train if split == "train" else test, root / folder
        # Archives unpack into a folder of their own, which users keep or remove.
        bases, prefix = [root, *sorted(root.glob("[!.]*"))], f"{part}/"
        how = f"; download the archive from {homepage} and unpack it there"
    folders = [base / Path(part).expanduser() for base in bases]
    clips = next((data.find_clips(folder) for folder in folders if folder.is_dir()), [])
    if not clips:
        raise UserError(f"{config.name} {split} data: no clips in a folder {part} in {root}{how}")
    return [Clip(prefix + clip.name, clip.files) for clip in clips]


def find(config: VideoSection, data_root: Path | None) -> None:
    """Refuse clips that are not here."""
    build(config, data_root, None)
