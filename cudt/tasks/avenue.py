"""CUHK Avenue: videos of people walking past a building (Lu et al., 2013)."""

from __future__ import annotations

from pathlib import Path

from cudt.data.clips import VIDEOS
from cudt.data.dataset_status import DatasetStatus
from cudt.tasks.video_denoising import VideoConfig, VideoDenoising, build_video_task, decoded
from cudt.tasks.video_sets import VideoSet

SET = VideoSet(
    "Avenue",
    "avenue",
    "http://www.cse.cuhk.edu.hk/leojia/projects/detectabnormal/dataset.html",
    {"train": "training_videos", "test": "testing_videos"},
    VIDEOS,
)


class Config(VideoConfig):
    """Keys of Avenue, which has 16 training videos and 21 test videos."""


def build(config: Config, data_root: Path | None, pretrained: str | None) -> VideoDenoising:
    """The task on the videos below `<data root>/avenue/`."""
    return build_video_task(config, decoded(config, SET.find(data_root)))


def datasets(data_root: Path | None) -> list[DatasetStatus]:
    return [SET.status(data_root)]
