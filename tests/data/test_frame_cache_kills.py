"""The frame cache is correct if its process is killed at any time, and if several processes fill it."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudt.data import clips, frame_cache
from cudt.data.clips import Clip, find_clips
from cudt.data.frame_cache import prepare
from cudt.utils import files
from tests.frame_caches import DECODE, SIZE, count_decoding, direct, kept, right, three_clips
from tests.processes import ending, in_child
from tests.videos import drift, write_video


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "frames"


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    return count_decoding(monkeypatch)


@pytest.fixture
def sources(tmp_path) -> list[Clip]:
    return three_clips(tmp_path / "set")


def kill_at_line(number: int) -> None:
    """Kill this process before the n-th line of the cache's code."""
    left = number
    watched = {frame_cache.__file__, files.__file__}

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(lambda frame, *_: trace if frame.f_code.co_filename in watched else None)


def check_after_a_kill(sources: list[Clip], cache: Path, decoded: list[str]) -> None:
    """Check that only incomplete clips are decoded again, and that no temporary files are left."""
    whole = [clip.name for clip in sources if frame_cache.is_prepared(clip, SIZE)]
    decoded.clear()
    assert right(prepare(sources, SIZE, "set"), sources)
    assert sorted(whole + decoded) == sorted(clip.name for clip in sources)
    assert sorted(kept(cache)) == sorted(
        f"{frame_cache.key(clip, SIZE)}.{suffix}" for clip in sources for suffix in ("frames", "json")
    )


@pytest.mark.slow
def test_the_cache_is_correct_after_a_kill_at_any_line(sources, tmp_path, decoded, monkeypatch):
    direct(sources[0])
    few, states = sources[:2], set()
    for moment in range(1, 1000, 3):
        monkeypatch.setenv("CUDT_CACHE", str(tmp_path / f"cache{moment}"))
        cache = frame_cache.folder()
        code = ending(in_child(partial(kill_at_line, moment), lambda: prepare(few, SIZE, "set")))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        names = [path.name for path in cache.parent.rglob("*.*")]
        states.add(tuple(sorted("part" if name.startswith(".") else name.split(".")[1] for name in names)))
        check_after_a_kill(few, cache, decoded)
    assert code == 0
    # Within the frames, between them and the description, within the description, and between clips.
    assert {("lock", "part"), ("frames", "lock"), ("frames", "lock", "part"), ("frames", "json", "lock")} <= states


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


@pytest.mark.parametrize("stage", ["the second frame", "the line's writing", "the frames' renaming", "both"])
def test_after_a_failure_only_the_missing_clips_are_decoded(stage, sources, cache, decoded, monkeypatch):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    def one_frame(*_: Any) -> Any:
        yield np.zeros((SIZE, SIZE), np.uint8)
        stop()

    prepare(sources[:1], SIZE, "set")
    with monkeypatch.context() as patch:
        if stage == "the second frame":
            patch.setattr(clips, "decode", one_frame)
        elif stage == "the line's writing":
            patch.setattr(frame_cache, "write_text", stop)
        else:
            patch.setattr(Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(sources, SIZE, "set")
    check_after_a_kill(sources, cache, decoded)


def test_several_processes_at_once_decode_each_clip_once(sources, tmp_path, monkeypatch, cache):
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
