from __future__ import annotations

import os
import resource
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudt.data import clips, frame_cache
from cudt.data.clips import Clip, find_clips
from cudt.data.frame_cache import prepare
from cudt.utils.errors import DataWarning, UserError
from tests.frame_caches import DECODE, SIZE, count_decoding, direct, right, three_clips
from tests.processes import ending, in_child
from tests.videos import drift, noise, write_frames, write_video


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A separate cache for each test."""
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "frames"


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    return count_decoding(monkeypatch)


@pytest.fixture
def sources(tmp_path) -> list[Clip]:
    return three_clips(tmp_path / "set")


# ---------------------------------------------------------------- what is stored


def test_cached_frames_are_the_decoded_frames(sources, decoded):
    assert right(prepare(sources, SIZE, "set"), sources)
    decoded.clear()
    again = prepare(sources, SIZE, "set")
    assert decoded == []
    assert right(again, sources)
    assert [len(one) for one in again] == [1, 2, 3]


def test_frames_are_mapped_and_no_file_stays_open(sources, tmp_path):
    for number in range(3, 40):
        write_frames(tmp_path / "set" / f"clip{number}", noise(number, 2, 8, 8))
    many = find_clips(tmp_path / "set")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 20, before[1]))
    try:
        made = prepare(many, SIZE, "set")
        windows = [one.frames[0:1] for one in made[:5]]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(made) == 40
    for window in windows:
        assert isinstance(window, np.memmap)
        assert not window.flags.writeable


def test_copies_of_a_clip_have_the_same_digest(sources, tmp_path):
    shutil.copytree(tmp_path / "set", tmp_path / "copy")
    first = prepare(sources, SIZE, "set")
    copy = prepare(find_clips(tmp_path / "copy"), SIZE, "copy")
    assert [one.digest for one in copy] == [one.digest for one in first]
    assert len({one.digest for one in first}) == 3


# ---------------------------------------------------------------- when the source changes


def rewrite(path: Path) -> None:
    """Other frames with the same number of bytes."""
    size = path.stat().st_size
    write_frames(path.parent, noise(9, 1, 10, 12))
    assert path.stat().st_size == size


CHANGES: dict[str, Callable[[Path], object]] = {
    "other frames of the same size": rewrite,
    "other frames of another size": lambda path: write_frames(path.parent, noise(9, 1, 20, 20)),
    "another frame": lambda path: write_frames(path.parent, noise(9, 1, 10, 12), first=9),
    "a frame less": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_only_a_clip_that_changed_is_decoded_again(change, sources, tmp_path, decoded):
    before = prepare(sources, SIZE, "set")
    decoded.clear()
    change(tmp_path / "set" / "clip1" / "001.tif")
    changed = find_clips(tmp_path / "set")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        after = prepare(changed, SIZE, "set")
    assert decoded == ["clip1"]
    assert right(after, changed)
    assert [one.digest == old.digest for one, old in zip(after, before, strict=True)] == [
        True,
        False,
        True,
    ]


def test_a_missing_source_is_reported(sources):
    sources[1].files[1].unlink()
    with pytest.raises(
        UserError, match=r"clip1/002\.tif: cannot be read \(No such file or directory\)"
    ):
        prepare(sources, SIZE, "set")


# ---------------------------------------------------------------- kills


def check_after_a_kill(sources: list[Clip], cache: Path, decoded: list[str]) -> None:
    """Check that only missing clips are decoded again."""
    whole = [clip.name for clip in sources if frame_cache.is_prepared(clip, SIZE)]
    decoded.clear()
    assert right(prepare(sources, SIZE, "set"), sources)
    assert sorted(whole + decoded) == sorted(clip.name for clip in sources)


def test_the_cache_is_correct_after_repeated_kills_at_any_time(tmp_path, cache, decoded):
    for number in range(8):
        write_video(tmp_path / "set" / f"{number}.avi", drift(number, 40))
    sources = find_clips(tmp_path / "set")
    direct(sources[0])
    rng = np.random.default_rng(0)
    for pause in rng.uniform(0.01, 0.1, 8):
        child = in_child(lambda: prepare(sources, SIZE, "set"))
        time.sleep(pause)
        os.kill(child, signal.SIGKILL)
        assert ending(child) in (0, -signal.SIGKILL)
    check_after_a_kill(sources, cache, decoded)


@pytest.mark.parametrize("stage", ["the second frame", "the description", "the frames' renaming"])
def test_after_a_failure_only_the_missing_clips_are_decoded(
    stage, sources, cache, decoded, monkeypatch
):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    def one_frame(*_: Any) -> Any:
        yield np.zeros((SIZE, SIZE), np.uint8)
        stop()

    prepare(sources[:1], SIZE, "set")
    with monkeypatch.context() as patch:
        if stage == "the second frame":
            patch.setattr(clips, "decode", one_frame)
        elif stage == "the description":
            patch.setattr(frame_cache, "write_text", stop)
        else:
            patch.setattr(Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(sources, SIZE, "set")
    check_after_a_kill(sources, cache, decoded)


def test_several_processes_at_once_decode_each_clip_once(sources, tmp_path, monkeypatch):
    log = tmp_path / "log"

    def slowly(clip: Clip, *more: Any) -> Any:
        with log.open("a") as file:
            file.write(f"{clip.name}\n")
        for frame in DECODE(clip, *more):
            time.sleep(0.02)
            yield frame

    direct(sources[0])
    monkeypatch.setattr(clips, "decode", slowly)
    children = [in_child(lambda: prepare(sources, SIZE, "set")) for _ in range(3)]
    assert [ending(child) for child in children] == [0, 0, 0]
    assert sorted(log.read_text().split()) == ["clip0", "clip1", "clip2"]
    assert right(prepare(sources, SIZE, "set"), sources)
