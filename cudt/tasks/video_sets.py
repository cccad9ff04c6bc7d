"""Published video datasets as they are downloaded: their folders, their source, and which parts are
available.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cudt.data import frame_cache
from cudt.data.clips import FRAMES, VIDEOS, Clip, find_clips
from cudt.data.dataset_status import DatasetStatus
from cudt.data.hub import DEFAULT_ROOT
from cudt.data.splits import Split
from cudt.tasks.video_denoising import VideoConfig
from cudt.utils.errors import UserError


@dataclass(frozen=True)
class VideoSet:
    """A dataset of clips in `<data root>/<folder>`, or in the folder there that its archive unpacks
    into.
    """

    name: str
    folder: str
    homepage: str
    folders: dict[Split, str]
    """The folder of each split's clips, relative to the folder that the archive unpacks into."""
    suffixes: Sequence[str] = (*VIDEOS, *FRAMES)

    def find(self, data_root: Path | None) -> dict[Split, list[Clip]]:
        """The clips of each split; an error if a split has none."""
        base = self._base(data_root)
        if base is None:
            raise UserError(f"dataset {self.name}: {self._missing(data_root)}")
        clips = {split: self._clips(base, split) for split in self.folders}
        for split, found in clips.items():
            if not found:
                kinds = ", ".join(f"*{suffix}" for suffix in self.suffixes)
                raise UserError(
                    f"{base / self.folders[split]}: no clips ({kinds}); download them from "
                    f"{self.homepage}"
                )
        return clips

    def status(self, data_root: Path | None) -> DatasetStatus:
        """Which clips are available, and how many of them are decoded to frames of the default
        size.
        """
        size: int = VideoConfig.model_fields["size"].default
        base = self._base(data_root)
        if base is None:
            return DatasetStatus(self.name, self._folder(data_root), {}, self._missing(data_root))
        found = {split: self._clips(base, split) for split in self.folders}
        parts: dict[str, str] = {}
        for split, clips in found.items():
            ready = sum(frame_cache.is_prepared(clip, size) for clip in clips)
            parts[split] = (
                f"{len(clips)} clip{'' if len(clips) == 1 else 's'}, {ready} decoded to "
                f"{size}×{size}"
            )
        empty = [self.folders[split] for split, clips in found.items() if not clips]
        problem = f"no clips in {', '.join(empty)}" if empty else ""
        return DatasetStatus(self.name, base, parts, problem)

    def _clips(self, base: Path, split: Split) -> list[Clip]:
        part = self.folders[split]
        folder = base / part
        found = find_clips(folder, self.suffixes) if folder.is_dir() else []
        return [replace(clip, name=f"{part}/{clip.name}") for clip in found]

    def _base(self, data_root: Path | None) -> Path | None:
        top, marker = self._folder(data_root), self.folders["train"]
        if not top.is_dir():
            return None
        inside = sorted(
            path for path in top.iterdir() if path.is_dir() and not path.name.startswith(".")
        )
        # Archives unpack into their own folder, which users keep or remove.
        return next((folder for folder in (top, *inside) if (folder / marker).is_dir()), None)

    def _folder(self, data_root: Path | None) -> Path:
        return (data_root or DEFAULT_ROOT) / self.folder

    def _missing(self, data_root: Path | None) -> str:
        return (
            f"no folder {self.folders['train']} in {self._folder(data_root)}; download the "
            "archive from "
            f"{self.homepage} and unpack it there"
        )
