"""What tests of the cache of frames share: a few clips, and whether they are in it as they should
be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudt.data import clips
from cudt.data.clips import Clip, find_clips
from cudt.data.frame_cache import Footage
from tests.videos import noise, write_frames

SIZE = 8
DECODE = clips.decode


def three_clips(folder: Path) -> list[Clip]:
    """Of one, two and three frames."""
    for number in range(3):
        write_frames(folder / f"clip{number}", noise(number, 1 + number, 10, 12))
    return find_clips(folder)


def count_decoding(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the clips that are decoded from now on, each time."""
    names: list[str] = []

    def count(clip: Clip, *more: Any) -> Any:
        names.append(clip.name)
        return DECODE(clip, *more)

    monkeypatch.setattr(clips, "decode", count)
    return names


def direct(clip: Clip) -> np.ndarray[Any, Any]:
    return np.stack(list(DECODE(clip, SIZE, lambda note: None)))


def right(found: Sequence[Footage], sources: Sequence[Clip]) -> bool:
    pairs = list(zip(found, sources, strict=True))
    return all(
        one.name == clip.name and np.array_equal(one.frames[:], direct(clip)) for one, clip in pairs
    )
