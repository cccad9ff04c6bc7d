"""ShanghaiTech Campus: thirteen places, videos to train on and frames to test (Luo et al., 2017)."""

from __future__ import annotations

from pathlib import Path

from cudt.tasks import Holding, _video
from cudt.tasks._video import VideoConfig, VideoDenoising
from cudt.tasks._video_sets import VideoSet

SET = VideoSet(
    "ShanghaiTech",
    "shanghaitech",
    "https://svip-lab.github.io/dataset/campus_dataset.html",
    {"train": "training/videos", "test": "testing/frames"},
)


class Config(VideoConfig):
    """ShanghaiTech has 330 videos to train on and 107 clips to test."""


def build(config: Config, data_root: Path | None, pretrained: str | None) -> VideoDenoising:
    """The clips below `<data root>/shanghaitech/`."""
    return _video.build(config, _video.decoded(config, SET.find(data_root)))


def holdings(data_root: Path | None) -> list[Holding]:
    return [SET.holding(data_root)]
