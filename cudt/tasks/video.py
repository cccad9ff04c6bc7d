"""Video denoising: clips are cut into windows of T frames, and a model restores the clean window
from a noisy one. Video tasks differ only in where their clips come from.
"""

from __future__ import annotations

import functools
import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cudt.config.schema import NamedSection
from cudt.config.tasks import Folder, Ucsd, VideoSection
from cudt.data import video as data
from cudt.data.hub import DEFAULT_ROOT, Status
from cudt.data.loader import Batch
from cudt.data.video import FRAMES, VIDEOS, Clip, Footage, Frames, find_clips
from cudt.tasks.base import Split, Task, leaked
from cudt.utils.errors import DataWarning, UserError

#: The largest value of a pixel.
PEAK = 255.0


@dataclass(frozen=True)
class VideoSet:
    """A published dataset in `<data root>/<folder>`, or in the folder there that its archive
    unpacks into.
    """

    name: str
    folder: str
    homepage: str
    train: str
    """The folder of the training clips, relative to that folder."""
    test: str
    suffixes: Sequence[str] = (*VIDEOS, *FRAMES)


_UCSD = "http://www.svcl.ucsd.edu/projects/anomaly/dataset.htm"
_TIF = (".tif", ".tiff")
#: By the name of the task; those of UCSD by the subset.
PUBLISHED = {
    "ped1": VideoSet("UCSDped1", "ucsd", _UCSD, "UCSDped1/Train", "UCSDped1/Test", _TIF),
    "ped2": VideoSet("UCSDped2", "ucsd", _UCSD, "UCSDped2/Train", "UCSDped2/Test", _TIF),
    "avenue": VideoSet(
        *("Avenue", "avenue"),
        "http://www.cse.cuhk.edu.hk/leojia/projects/detectabnormal/dataset.html",
        *("training_videos", "testing_videos", VIDEOS),
    ),
    "shanghaitech": VideoSet(
        *("ShanghaiTech", "shanghaitech"),
        "https://svip-lab.github.io/dataset/campus_dataset.html",
        *("training/videos", "testing/frames"),
    ),
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
    """f = (1/T)·‖X − Y‖²_F on the scale 0 to 255; the metrics are RMSE per pixel and PSNR."""

    version = 1
    metric_name = "RMSE"
    metric_of_mean = "root"
    higher_is_better = False
    has_pictures = True
    input_is_answer = True
    windows_of_clips = True

    def __init__(self, windows: Callable[[Split], list[Window]]) -> None:
        self._windows = functools.cache(windows)
        self._notes: dict[Split, dict[str, int]] = {}

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Frames, height and width of a window."""
        n_frames, height, width = self._windows("train")[0].frames.shape
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

    def tested_on(self, other: Task) -> VideoDenoising:
        if not isinstance(other, VideoDenoising):
            raise UserError("a video task can only be tested on other videos; name such a task")
        return VideoDenoising(lambda split: (other if split == "test" else self)._windows(split))

    def examples(self, split: Split) -> Sequence[Window]:
        if split not in self._notes:
            train, own = (
                {id(window.footage): window.footage.digest for window in self._windows(one)}
                for one in ("train", split)
            )
            # Without validation clips, validation is another part of the training clips.
            others = [digest for clip, digest in own.items() if clip not in train]
            self._notes[split] = leaked(split, others, train.values(), "clips")
        return self._windows(split)

    def notes(self) -> dict[str, int]:
        return {name: count for notes in self._notes.values() for name, count in notes.items()}

    def collate(self, examples: Sequence[Window]) -> Batch:
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
        counts = np.zeros(256, np.int64)
        for window in self._windows("train"):
            counts += np.bincount(window.frames.ravel(), minlength=256)
        n, total, squares = (int(counts @ np.arange(256) ** power) for power in range(3))
        return self.height * self.width * (squares / n - (total / n) ** 2)

    def fingerprint(self, splits: Sequence[Split]) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for split in splits:
            for one in self._windows(split):
                line = f"{split} {one.id} {one.footage.digest} {one.start} {one.length}\n"
                digest.update(line.encode())
        return digest.hexdigest()

    def pictures(self, values: Tensor) -> Frames:
        return values.detach().round().clamp(0, PEAK).to(torch.uint8).cpu().numpy()


def windows_task(
    config: VideoSection, footage: Callable[[Split], Sequence[Footage]], *, is_held_out: bool
) -> VideoDenoising:
    """The task on the clips of each split; `is_held_out` validation is the end of each training
    clip.
    """
    footage = functools.cache(footage)

    def windows(split: Split) -> list[Window]:
        held_out = is_held_out and split == "validation"
        found: list[Window] = []
        for clip in footage("train" if held_out else split):
            start, stop = 0, len(clip.frames)
            if is_held_out and split != "test":
                end = round((1 - config.validation_share) * stop)
                # A clip that is too short for both parts is for training.
                if min(end, stop - end) >= config.frames:
                    start, stop = (end, stop) if held_out else (0, end)
                elif held_out:
                    continue
            if stop - start < config.frames:
                warnings.warn(
                    f"skipped {split} clip '{clip.name}': {stop - start} frames, and a window has "
                    f"{config.frames} (task.frames)",
                    DataWarning,
                    stacklevel=2,
                )
            stride = config.stride if split == "train" else config.frames
            found += [
                Window(f"{split}/{clip.name}/{first}", clip, first, config.frames)
                for first in range(start, stop - config.frames + 1, stride)
            ]
        if not found:
            raise UserError(
                f"no {split} clip has {config.frames} frames (task.frames); lower it"
                f"{' or raise task.validation_share' if held_out else ''}"
            )
        order = np.random.default_rng(config.data_seed).permutation(len(found))
        return [found[index] for index in sorted(order[: getattr(config.limit, split)])]

    return VideoDenoising(windows)


# ---------------------------------------------------------------- where clips come from


def build(config: VideoSection, data_root: Path | None, pretrained: str | None) -> VideoDenoising:
    """The task on the clips of a published dataset or of your own folders."""
    clips = _own_clips(config, data_root) if isinstance(config, Folder) else None
    if clips is None:
        known, base = _published(config, data_root)
        if base is None:
            raise UserError(f"dataset {known.name}: {_how_to_get(known, data_root)}")
        clips = {split: _clips(known, base, split) for split in ("train", "test")}
        for split, found in clips.items():
            if not found:
                raise UserError(
                    f"{base / getattr(known, split)}: no clips ({', '.join(known.suffixes)}); "
                    f"download them from {known.homepage}"
                )

    def footage(split: Split) -> list[Footage]:
        return data.prepare(clips[split], config.size, f"{config.name} {split}")

    return windows_task(config, footage, is_held_out="validation" not in clips)


def status(config: NamedSection, data_root: Path | None) -> Status | None:
    """Which clips of a published dataset are here, and how many of them are decoded."""
    if isinstance(config, Folder) or not isinstance(config, VideoSection):
        return None
    known, base = _published(config, data_root)
    if base is None:
        folder, how = (data_root or DEFAULT_ROOT) / known.folder, _how_to_get(known, data_root)
        return Status(known.name, folder, {}, how)
    clips = {split: _clips(known, base, split) for split in ("train", "test")}
    size = config.size
    parts = {
        split: f"{len(found)} clips, {data.n_prepared(found, size)} decoded to {size}×{size}"
        for split, found in clips.items()
    }
    empty = [getattr(known, split) for split, found in clips.items() if not found]
    return Status(known.name, base, parts, f"no clips in {', '.join(empty)}" if empty else "")


def _published(config: VideoSection, data_root: Path | None) -> tuple[VideoSet, Path | None]:
    """The dataset of a section, and the folder that it is in."""
    known = PUBLISHED[config.subset if isinstance(config, Ucsd) else config.name]
    top = (data_root or DEFAULT_ROOT) / known.folder
    # Archives unpack into their own folder, which users keep or remove.
    folders = [top, *sorted(top.glob("[!.]*"))]
    return known, next((one for one in folders if (one / known.train).is_dir()), None)


def _clips(known: VideoSet, base: Path, split: Split) -> list[Clip]:
    part: str = getattr(known, split)
    found = find_clips(base / part, known.suffixes)
    return [replace(clip, name=f"{part}/{clip.name}") for clip in found]


def _how_to_get(known: VideoSet, data_root: Path | None) -> str:
    return (
        f"no folder {known.train} in {(data_root or DEFAULT_ROOT) / known.folder}; download the "
        f"archive from {known.homepage} and unpack it there"
    )


def _own_clips(config: Folder, data_root: Path | None) -> dict[Split, list[Clip]]:
    """The clips of each folder that a recipe names; a clip in two splits is an error."""
    root = data_root or DEFAULT_ROOT
    named: dict[Split, str | None] = {
        "train": config.train,
        "validation": config.validation,
        "test": config.test,
    }
    clips: dict[Split, list[Clip]] = {}
    seen: dict[Path, Split] = {}
    for split, name in named.items():
        if name is None:
            continue
        given = Path(name).expanduser()
        folder = next((one for one in (root / given, given) if one.is_dir()), None)
        if folder is None or not (found := find_clips(folder)):
            raise UserError(
                f"task.{split}: no folder '{name}' with clips below {root} or the current folder; "
                f"a clip is a video ({', '.join(VIDEOS)}) or a folder of frames "
                f"({', '.join(FRAMES)})"
            )
        clips[split] = found
        for clip in found:
            path = clip.files[0].resolve()
            if seen.setdefault(path, split) != split:
                raise UserError(
                    f"{path}: both in task.{seen[path]} and in task.{split}; use folders that "
                    "share no clips"
                )
    return clips
