"""Checks of clips before training: the same clip twice, and test clips that are also training clips."""

from __future__ import annotations

from collections.abc import Sequence

from cudt.data.findings import Finding
from cudt.data.frame_cache import Footage


def repeated(clips: Sequence[Footage]) -> Finding:
    """Clips with the same frames as an earlier one."""
    return Finding("repeated clips", len(clips) - len({clip.digest for clip in clips}), len(clips), "clips")


def leaked(clips: Sequence[Footage], training: Sequence[Footage]) -> Finding:
    """Clips whose frames are also a training clip, under whatever name."""
    known = {clip.digest for clip in training}
    return Finding(
        "clips that are also in the training data", sum(clip.digest in known for clip in clips), len(clips), "clips"
    )
