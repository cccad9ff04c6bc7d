from __future__ import annotations

import json
import os
import resource
import shutil
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
from tests.frame_caches import DECODE, SIZE, count_decoding, kept, right, three_clips
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


def test_warnings_are_repeated_when_frames_come_from_the_cache(tmp_path):
    write_frames(tmp_path / "set" / "mixed", noise(0, 2, 8, 8))
    write_frames(tmp_path / "set" / "mixed", noise(0, 1, 9, 9), first=3)
    video = write_video(tmp_path / "set" / "b [/b] é.avi", drift(0, 20))
    video.write_bytes(video.read_bytes()[:-800])
    for _ in range(2):
        with pytest.warns(DataWarning) as warned:
            prepare(find_clips(tmp_path / "set"), SIZE, "set")
        messages = [str(one.message) for one in warned]
        assert len(messages) == 2
        assert messages[0].startswith(f"{video}: damaged (")
        assert messages[1].startswith(f"{tmp_path / 'set' / 'mixed'}: frames of 2 sizes (8×8, 9×9)")


def test_a_file_whose_name_is_not_valid_unicode_is_cached(tmp_path, decoded):
    write_video(tmp_path / "set" / "a.avi", drift(0, 3)).rename(tmp_path / "set" / os.fsdecode(b"\xff.avi"))
    odd = find_clips(tmp_path / "set")
    for _ in range(2):
        assert len(prepare(odd, SIZE, "set")[0]) == 3
    assert len(decoded) == 1


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
    assert [one.digest == old.digest for one, old in zip(after, before, strict=True)] == [True, False, True]


def test_each_size_has_its_own_frames(sources):
    prepare(sources, SIZE, "set")
    assert [one.frames[:].shape for one in prepare(sources, 5, "set")] == [(1, 5, 5), (2, 5, 5), (3, 5, 5)]
    assert frame_cache.key(sources[0], 5) != frame_cache.key(sources[0], SIZE) != frame_cache.key(sources[1], SIZE)


def test_a_missing_source_is_reported(sources):
    sources[1].files[1].unlink()
    with pytest.raises(UserError, match=r"clip1/002\.tif: cannot be read \(No such file or directory\)"):
        prepare(sources, SIZE, "set")
    assert not frame_cache.is_prepared(sources[1], SIZE)


def test_a_source_that_changes_while_it_is_read_is_reported(sources, monkeypatch):
    def change(clip: Clip, *more: Any) -> Any:
        yield from DECODE(clip, *more)
        os.utime(clip.files[0], ns=(0, 0))

    monkeypatch.setattr(clips, "decode", change)
    with pytest.raises(
        UserError, match=r"clip0: the clip or its frames in .* changed while they were read; run the command again"
    ):
        prepare(sources, SIZE, "set")


# ---------------------------------------------------------------- a damaged cache


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def without(name: str) -> Callable[[Path, Path], object]:
    def drop(_: Path, line: Path) -> None:
        facts = json.loads(line.read_text())
        del facts[name]
        line.write_text(json.dumps(facts))

    return drop


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "a byte less": lambda frames, line: shorten(frames),
    "a byte more": lambda frames, line: frames.write_bytes(frames.read_bytes() + b"x"),
    "no frames": lambda frames, line: frames.unlink(),
    "no line": lambda frames, line: line.unlink(),
    "an empty line": lambda frames, line: line.write_text(""),
    "half a line": lambda frames, line: line.write_text(line.read_text()[:30]),
    "junk": lambda frames, line: line.write_bytes(b"\xff\x00"),
    "a list": lambda frames, line: line.write_text("[]"),
    "no shape": without("shape"),
    "no notes": without("notes"),
    "no digest": without("digest"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_an_incomplete_clip_is_decoded_again(damage, sources, cache, decoded):
    prepare(sources, SIZE, "set")
    whole = kept(cache)
    decoded.clear()
    name = frame_cache.key(sources[1], SIZE)
    damage(cache / f"{name}.frames", cache / f"{name}.json")
    assert not frame_cache.is_prepared(sources[1], SIZE)
    assert right(prepare(sources, SIZE, "set"), sources)
    assert decoded == ["clip1"]
    assert kept(cache) == whole


def test_frames_that_are_deleted_while_in_use_are_decoded_again(sources, cache):
    one = prepare(sources, SIZE, "set")[0]
    shutil.rmtree(cache)
    with pytest.warns(DataWarning, match=r"\.frames: was damaged; the clip was decoded again"):
        one.frames[:1]
    assert right([one], sources[:1])


def test_a_clip_that_is_deleted_with_its_frames_is_reported(sources, cache):
    one = prepare(sources, SIZE, "set")[0]
    shutil.rmtree(cache)
    sources[0].files[0].unlink()
    with pytest.raises(UserError, match=r"clip0/001\.tif: cannot be read"):
        one.frames[:1]


def test_every_flipped_byte_of_the_frames_is_noticed_and_the_clip_decoded_again(sources, cache, decoded):
    one = prepare(sources, SIZE, "set")[2]
    assert isinstance(one.frames, frame_cache.Mapped)
    path, whole = one.frames.path, one.frames.path.read_bytes()
    for position in range(0, len(whole), 17):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        decoded.clear()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert right([one], sources[2:])
        assert [str(warning.message) for warning in warned] == [f"{path}: was damaged; the clip was decoded again"]
        assert decoded == ["clip2"]
        assert path.read_bytes() == whole


def test_every_flipped_byte_of_the_description_is_noticed(sources, cache):
    prepare(sources, SIZE, "set")
    whole = kept(cache)
    path = cache / f"{frame_cache.key(sources[1], SIZE)}.json"
    content = path.read_bytes()
    # But for the last one, the end of the line.
    for position in range(0, len(content) - 1, 5):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        assert not frame_cache.is_prepared(sources[1], SIZE), position
    assert right(prepare(sources, SIZE, "set"), sources)
    assert kept(cache) == whole


def test_descriptions_of_earlier_versions_are_made_again(sources, cache, decoded):
    """They have no checksums."""
    prepare(sources, SIZE, "set")
    whole = kept(cache)
    decoded.clear()
    path = cache / f"{frame_cache.key(sources[1], SIZE)}.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({name: facts[name] for name in ("source", "notes", "shape", "digest")}))
    assert right(prepare(sources, SIZE, "set"), sources)
    assert decoded == ["clip1"]
    assert kept(cache) == whole


# ---------------------------------------------------------------- no cache


def test_without_a_folder_that_can_be_written_clips_are_held_in_memory_with_one_warning(sources, cache, decoded):
    cache.parent.touch()
    with pytest.warns(DataWarning) as warned:
        found = prepare(sources, SIZE, "set")
    (message,) = (str(one.message) for one in warned)
    assert message.startswith(f"{cache}: Not a directory; set is decoded into memory (0 MB), again by every command")
    assert decoded == ["clip0", "clip1", "clip2"]
    assert right(found, sources)
    cache.parent.unlink()
    assert [one.digest for one in prepare(sources, SIZE, "set")] == [one.digest for one in found]


def test_clips_that_do_not_fit_into_memory_need_the_cache(sources, cache, monkeypatch):
    cache.parent.touch()
    monkeypatch.setattr(frame_cache, "_MOST_IN_MEMORY", 5 * SIZE * SIZE)
    with pytest.raises(UserError, match=rf"^{cache}: Not a directory; decoded frames need 64 bytes each, too many for"):
        prepare(sources, SIZE, "set")


@pytest.mark.parametrize("size", [SIZE, 200])
def test_a_full_disk_leaves_nothing_in_the_cache(size, sources, cache):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size * size * 3 - 1, before[1]))
    try:
        with pytest.warns(DataWarning, match=rf"^{cache}: File too large; set is decoded into memory"):
            assert len(prepare(sources[2:], size, "set")[0]) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept(cache) == {}
    assert len(prepare(sources, size, "set")) == 3
