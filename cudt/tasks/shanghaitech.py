"""ShanghaiTech Campus: training videos and test frames of thirteen scenes (Luo et al., 2017)."""

from __future__ import annotations

from pathlib import Path

from cudt.config import tasks as sections
from cudt.data.dataset_status import DatasetStatus
from cudt.tasks.video_denoising import VideoDenoising, build_video_task, decoded
from cudt.tasks.video_sets import VideoSet

SET = VideoSet(
    "ShanghaiTech",
    "shanghaitech",
    "https://svip-lab.github.io/dataset/campus_dataset.html",
    {"train": "training/videos", "test": "testing/frames"},
)


Config = sections.ShanghaiTech


def build(config: Config, data_root: Path | None, pretrained: str | None) -> VideoDenoising:
    """The task on the clips below `<data root>/shanghaitech/`."""
    return build_video_task(config, decoded(config, SET.find(data_root)))


def datasets(data_root: Path | None) -> list[DatasetStatus]:
    return [SET.status(data_root)]
