"""CUHK Avenue: videos of people walking past a building (Lu et al., 2013)."""

from __future__ import annotations

from pathlib import Path

from cudt.config import tasks as sections
from cudt.data.clips import VIDEOS
from cudt.data.dataset_status import DatasetStatus
from cudt.tasks.video_denoising import VideoDenoising, build_video_task, decoded
from cudt.tasks.video_sets import VideoSet

SET = VideoSet(
    "Avenue",
    "avenue",
    "http://www.cse.cuhk.edu.hk/leojia/projects/detectabnormal/dataset.html",
    {"train": "training_videos", "test": "testing_videos"},
    VIDEOS,
)


Config = sections.Avenue


def build(config: Config, data_root: Path | None, pretrained: str | None) -> VideoDenoising:
    """The task on the videos below `<data root>/avenue/`."""
    return build_video_task(config, decoded(config, SET.find(data_root)))


def datasets(data_root: Path | None) -> list[DatasetStatus]:
    return [SET.status(data_root)]
