"""Shared by the video models: their keys in a recipe, and which tasks and frame sizes they take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config import models as sections
from cudt.config.schema import NamedSection
from cudt.config.tasks import VideoSection as VideoConfig
from cudt.tasks.video import VideoDenoising
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.tasks.base import Task


PatchConfig = sections.PatchSection


def video_task(task: Task, model: str) -> VideoDenoising:
    """The task as a video task; a UserError for any other."""
    if not isinstance(task, VideoDenoising):
        raise _no_video(model)
    return task


def check_video(task: NamedSection, model: str) -> VideoConfig:
    """The task section as one of a video task; a UserError for any other."""
    if not isinstance(task, VideoConfig):
        raise _no_video(model)
    return task


def _no_video(model: str) -> UserError:
    return UserError(
        f"model {model} needs a video task: set task.name to ucsd, folder or another video task"
    )


def check_patches(side: int, height: int, width: int) -> None:
    """Refuse a frame size that is not a multiple of the patch size."""
    if height % side or width % side:
        raise UserError(
            f"model.patch = {side}: frames of {width}×{height} pixels are not a multiple of the "
            "patch size; "
            "change task.size or model.patch"
        )


def check_sections(config: PatchConfig, task: NamedSection, data_root: Path | None) -> None:
    """Refuse a task without video, or with a frame size that is not a multiple of the patch
    size.
    """
    size = check_video(task, config.name).size
    check_patches(config.patch, size, size)
