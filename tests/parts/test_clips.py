"""Clips: found, decoded once, and read through memory maps."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from cudt.data import video
from cudt.data.video import Footage, digest_of, find_clips, prepare
from cudt.utils.errors import UserError
from tests.videos import drift, noise, write_frames, write_video


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "frames"


def footage_of(folder: Path, size: int = 16) -> Footage:
    """The only clip in a folder."""
    (found,) = prepare(find_clips(folder), size, "clips")
    return found


def error_of(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        footage_of(folder)
    return str(error.value)


def test_videos_and_folders_of_frames_are_clips_in_natural_order(tmp_path):
    names = """b.avi A.MP4 walk/10.JPG walk/2.tiff walk/._3.tiff walk/notes.txt walk_gt/1.bmp
        .hidden/1.png deep/er/9.png deep/er/x.mkv clip10/1.png clip9/1.png""".split()
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    clips = find_clips(tmp_path / "in")
    found = [(clip.name, [file.name for file in clip.files]) for clip in clips]
    videos = [(name, [name.split("/")[-1]]) for name in ("A.MP4", "b.avi", "deep/er/x.mkv")]
    frames = [("clip9", ["1.png"]), ("clip10", ["1.png"]), ("deep/er", ["9.png"])]
    assert found == [*videos[:2], *frames[:2], videos[2], frames[2], ("walk", ["2.tiff", "10.JPG"])]


def test_grey_frames_of_the_right_size_are_unchanged_and_others_are_pillows_resized(tmp_path):
    frames = noise(0, 3, 16, 16)
    assert np.array_equal(footage_of(write_frames(tmp_path / "same", frames)).frames, frames)
    large = noise(1, 2, 40, 56)
    found = footage_of(write_frames(tmp_path / "large", large)).frames
    for mine, frame in zip(found, large, strict=True):
        pillows = np.asarray(Image.fromarray(frame).resize((16, 16), Image.Resampling.BILINEAR))
        assert np.abs(mine.astype(int) - pillows).max() <= 1


def test_colours_are_weighted_as_in_bt601_in_images_and_videos(tmp_path):
    images, video_frames = noise(2, 2, 32, 32, 3), drift(3, 7, 32, 32)
    write_frames(tmp_path / "images", images, "png")
    write_video(tmp_path / "video" / "clip.mkv", video_frames, "ffv1", "bgr0")
    for name, frames in (("images", images), ("video", video_frames)):
        found = footage_of(tmp_path / name, 32).frames
        assert np.abs(found - frames @ np.array([0.2989, 0.587, 0.114])).max() <= 0.51


def test_a_clip_is_decoded_once_for_each_size_and_source(tmp_path, cache, monkeypatch):
    decoded = Mock(side_effect=video._decoded)
    monkeypatch.setattr(video, "_decoded", decoded)
    folder = write_frames(tmp_path / "in", noise(0, 3, 16, 16))
    first, again = footage_of(folder), footage_of(folder)
    assert first == again
    assert decoded.call_count == 1
    assert isinstance(first.frames, np.memmap)
    assert not first.frames.flags.writeable
    footage_of(folder, 8)
    assert decoded.call_count == len([*cache.glob("*.npy")]) == 2
    Image.fromarray(noise(9, 16, 16)).save(folder / "001.tif")
    changed = footage_of(folder)
    assert changed.digest != first.digest
    os.utime(folder / "002.tif", (1, 1))
    assert footage_of(folder).digest == changed.digest == digest_of(changed.frames)
    assert decoded.call_count == 4


def test_damage_is_one_line_that_names_the_file(tmp_path):
    folder = write_frames(tmp_path / "images", noise(0, 3, 16, 16), "png")
    image = folder / "002.png"
    image.write_bytes(image.read_bytes()[:60])
    assert error_of(folder).startswith(f"{image}: cannot be read")
    Image.fromarray(noise(0, 8, 8).astype(np.uint16) * 200).save(image)
    assert f"{image}: expected an image of 8 bits" in error_of(folder)
    path = write_video(tmp_path / "in" / "a.avi", drift(0, 30, 64, 64))
    content = path.read_bytes()
    for damaged in (b"", b"not a video", content[:200], content[: len(content) // 2]):
        path.write_bytes(damaged)
        assert error_of(tmp_path / "in").startswith(str(path))
