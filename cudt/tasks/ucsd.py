"""UCSD Pedestrian: TIF frames of walkways (Mahadevan et al., 2010)."""

from __future__ import annotations

from pathlib import Path

from cudt.config import tasks as sections
from cudt.data.dataset_status import DatasetStatus
from cudt.tasks.video_denoising import VideoDenoising, build_video_task, decoded
from cudt.tasks.video_sets import VideoSet


def _walkway(folder: str) -> VideoSet:
    return VideoSet(
        folder,
        "ucsd",
        "http://www.svcl.ucsd.edu/projects/anomaly/dataset.htm",
        {"train": f"{folder}/Train", "test": f"{folder}/Test"},
        (".tif", ".tiff"),
    )


SETS = {"ped1": _walkway("UCSDped1"), "ped2": _walkway("UCSDped2")}


Config = sections.Ucsd


def build(config: Config, data_root: Path | None, pretrained: str | None) -> VideoDenoising:
    """The task on the clips below `<data root>/ucsd/`."""
    return build_video_task(config, decoded(config, SETS[config.subset].find(data_root)))


def datasets(data_root: Path | None) -> list[DatasetStatus]:
    return [walkway.status(data_root) for walkway in SETS.values()]
