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
    """A dataset of clips: a published one in `<data root>/<folder>`, or in the folder there that
    its archive unpacks into; or a user's own folders.
    """

    name: str
    folder: str
    homepage: str
    parts: dict[Split, str]
    """The folder of each split."""
    suffixes: Sequence[str] = (*VIDEOS, *FRAMES)

    def clips(self, split: Split, data_root: Path | None) -> list[Clip]:
        """The clips of a split; none if its folder is missing."""
        top, part = (data_root or DEFAULT_ROOT) / self.folder, self.parts[split]
        # Archives unpack into their own folder, which users keep or remove.
        bases = (top, *sorted(top.glob("[!.]*"))) if self.folder else (top, Path())
        found = (base / Path(part).expanduser() for base in bases)
        folder = next((folder for folder in found if folder.is_dir()), None)
        clips = find_clips(folder, self.suffixes) if folder else []
        return [replace(one, name=f"{part}/{one.name}") for one in clips] if self.folder else clips

    def how_to_get(self, split: Split, data_root: Path | None) -> str:
        """What is missing, and where it comes from."""
        top = (data_root or DEFAULT_ROOT) / self.folder
        kinds = ", ".join(f"*{suffix}" for suffix in self.suffixes)
        where = f"download the archive from {self.homepage} and unpack it there"
        return f"no clips ({kinds}) in a folder {self.parts[split]} in {top}" + (
            f"; {where}" if self.homepage else " or in the current folder"
        )


def _walkway(name: str) -> VideoSet:
    homepage = "http://www.svcl.ucsd.edu/projects/anomaly/dataset.htm"
    parts: dict[Split, str] = {"train": f"{name}/Train", "test": f"{name}/Test"}
    return VideoSet(name, "ucsd", homepage, parts, (".tif", ".tiff"))


#: By the name of the task; those of UCSD by the subset.
PUBLISHED = {
    "ped1": _walkway("UCSDped1"),
    "ped2": _walkway("UCSDped2"),
    "avenue": VideoSet(
        "Avenue",
        "avenue",
        "http://www.cse.cuhk.edu.hk/leojia/projects/detectabnormal/dataset.html",
        {"train": "training_videos", "test": "testing_videos"},
        VIDEOS,
    ),
    "shanghaitech": VideoSet(
        "ShanghaiTech",
        "shanghaitech",
        "https://svip-lab.github.io/dataset/campus_dataset.html",
        {"train": "training/videos", "test": "testing/frames"},
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
        self._checked: set[Split] = set()

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
        if split not in self._checked:
            self._checked.add(split)
            train, own = (
                {id(window.footage): window.footage.digest for window in self._windows(one)}
                for one in ("train", split)
            )
            # Without validation clips, validation is another part of the training clips.
            others = [digest for clip, digest in own.items() if clip not in train]
            self._notes |= leaked(split, others, train.values(), "clips")
        return self._windows(split)

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
        counts: Frames = np.zeros(256, np.int64)
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
    known = _known(config)
    clips: dict[Split, list[Clip]] = {}
    seen: dict[Path, Split] = {}
    for split in known.parts:
        clips[split] = known.clips(split, data_root)
        if not clips[split]:
            raise UserError(f"{known.name} {split} data: {known.how_to_get(split, data_root)}")
        for path in (clip.files[0].resolve() for clip in clips[split]):
            if seen.setdefault(path, split) != split:
                raise UserError(
                    f"{path}: both in task.{seen[path]} and in task.{split}; use folders that "
                    "share no clips"
                )

    def footage(split: Split) -> list[Footage]:
        return data.prepare(clips[split], config.size, f"{config.name} {split}")

    return windows_task(config, footage, is_held_out="validation" not in clips)


def _known(config: VideoSection) -> VideoSet:
    if isinstance(config, Folder):
        named: dict[Split, str | None] = {
            "train": config.train,
            "validation": config.validation,
            "test": config.test,
        }
        return VideoSet("folder", "", "", {split: name for split, name in named.items() if name})
    return PUBLISHED[config.subset if isinstance(config, Ucsd) else config.name]


def status(config: VideoSection, data_root: Path | None) -> Status | None:
    """Which clips of a published dataset are here, or how to get them."""
    known = _known(config)
    if isinstance(config, Folder):
        return None
    clips = {split: known.clips(split, data_root) for split in known.parts}
    parts: dict[str, str] = {one: f"{len(clips[one])} clips" for one in clips if clips[one]}
    missing = [known.how_to_get(split, data_root) for split in clips if not clips[split]]
    folder = (data_root or DEFAULT_ROOT) / known.folder
    return Status(known.name, folder, parts, missing[0] if missing else "")
