"""Your own clips: folders of videos, or of folders of frames."""

from __future__ import annotations

import os
from pathlib import Path

from cudt.config import tasks as sections
from cudt.data.clips import FRAMES, VIDEOS, Clip, find_clips
from cudt.data.hub import DEFAULT_ROOT
from cudt.data.splits import Split
from cudt.tasks.video_denoising import VideoDenoising, build_video_task, decoded
from cudt.utils.errors import UserError

Config = sections.Folder


def build(config: Config, data_root: Path | None, pretrained: str | None) -> VideoDenoising:
    """The task on the clips in the folders that the recipe names."""
    named: dict[Split, str | None] = {
        "train": config.train,
        "validation": config.validation,
        "test": config.test,
    }
    clips = {
        split: _clips(name, split, data_root) for split, name in named.items() if name is not None
    }
    _check_apart(clips)
    return build_video_task(config, decoded(config, clips))


def _clips(name: str, split: str, data_root: Path | None) -> list[Clip]:
    root = data_root or DEFAULT_ROOT
    # Path.expanduser raises an error if there is no such user.
    named = Path(os.path.expanduser(name))  # noqa: PTH111
    folders = [path for path in (root / named, named) if path.is_dir()]
    if not folders or not name:
        if any(path.is_file() for path in (root / named, named)):
            raise UserError(f"task.{split}: '{name}' is a file; name its folder")
        raise UserError(
            f"task.{split}: folder '{name}' does not exist below {root} or the current folder"
        )
    clips = find_clips(folders[0])
    if not clips:
        raise UserError(
            f"task.{split}: no clips in '{folders[0]}'; a clip is a video ({', '.join(VIDEOS)}) "
            f"or a folder of frames ({', '.join(FRAMES)})"
        )
    return clips


def _check_apart(clips: dict[Split, list[Clip]]) -> None:
    """Refuse a clip in two splits: a model must not be tested on clips that it was trained on."""
    seen: dict[Path, str] = {}
    for split, found in clips.items():
        for clip in found:
            other = seen.setdefault(clip.path.resolve(), split)
            if other != split:
                raise UserError(
                    f"{clip.path}: both in task.{other} and in task.{split}; use folders that "
                    "share no clips"
                )
