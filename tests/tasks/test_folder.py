from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cudt.data.splits import SEEN
from cudt.tasks import folder
from cudt.tasks.video_denoising import VideoDenoising
from cudt.utils.errors import DataWarning, UserError
from tests.videos import drift, noise, write_frames, write_video


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch) -> Path:
    """A data root in the current folder, with training and test clips of both kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))
    write_frames(tmp_path / "root" / "mine" / "walk", noise(0, 12, 10, 14), "png")
    write_video(tmp_path / "root" / "mine" / "b.avi", drift(0, 10))
    write_video(tmp_path / "root" / "test" / "c.mp4", drift(1, 9))
    write_frames(tmp_path / "root" / "other", noise(1, 9, 10, 14), "png")
    return tmp_path / "root"


def build(train: str = "mine", test: str = "test", root: Path | None = Path("root"), **more: Any) -> VideoDenoising:
    settings = {"frames": 3, "stride": 1, "size": 8, "validation_share": 0.3, **more}
    made = folder.build(folder.Config(name="folder", train=train, test=test, **settings), root, None)
    made.read(SEEN)
    return made


def error_of(*arguments: Any, **more: Any) -> str:
    with pytest.raises(UserError) as error:
        build(*arguments, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


def names(task: VideoDenoising, split: Any) -> list[str]:
    return list(dict.fromkeys(window.footage.name for window in task.examples(split)))


def test_videos_and_folders_of_frames_are_clips():
    task = build()
    assert names(task, "train") == names(task, "validation") == ["b.avi", "walk"]
    assert names(task, "test") == ["c.mp4"]


def test_a_validation_folder_is_used_completely():
    task = build("mine/walk", "other", validation="test")
    assert names(task, "validation") == ["c.mp4"]
    assert names(task, "train") == ["."]


def test_a_folder_may_itself_be_a_clip():
    task = build("test", "mine/walk")
    assert names(task, "test") == ["."]
    assert [window.start for window in task.examples("test")] == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ({"train": "mine", "test": "mine"}, "root/mine/b.avi: both in task.train and in task.test; "),
        ({"train": "mine", "test": "mine/walk"}, "root/mine/walk: both in task.train and in task.test; "),
        ({"train": "mine", "validation": "test"}, "root/test/c.mp4: both in task.validation and in task.test; "),
    ],
)
def test_a_clip_in_two_splits_is_refused(folders, message):
    assert error_of(**folders) == message + "use folders that share no clips"


def test_folders_are_searched_below_the_data_root_and_then_in_the_current_folder(root, tmp_path, monkeypatch):
    write_frames(tmp_path / "test" / "here", noise(0, 9, 8, 8))
    write_frames(tmp_path / "own" / "here", noise(0, 9, 8, 8))
    assert names(build(), "test") == ["c.mp4"]
    assert names(build(test="own"), "test") == ["here"]
    assert names(build(test=str(root / "test")), "test") == ["c.mp4"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names(build(test="~/own"), "test") == ["here"]
    root.rename(tmp_path / "data")
    assert names(build(root=None), "test") == ["c.mp4"]


@pytest.mark.parametrize("name", ["gone", "", "~nobody-of-this-name/clips"])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_missing_folder_is_reported_with_the_searched_folders(split, name):
    message = error_of(**{split: name})
    assert message == f"task.{split}: folder '{name}' does not exist below root or the current folder"


def test_a_file_instead_of_a_folder_is_reported():
    assert error_of(train="mine/b.avi") == "task.train: 'mine/b.avi' is a file; name its folder"


def test_a_folder_without_clips_is_reported_with_what_a_clip_is(root):
    (root / "empty" / "inside").mkdir(parents=True)
    (root / "empty" / "notes.txt").touch()
    message = error_of(test="empty")
    assert message.startswith("task.test: no clips in 'root/empty'; a clip is a video (.avi, .mp4,")
    assert ".tif" in message


# ---------------------------------------------------------------- damaged clips


def test_a_clip_shorter_than_a_window_is_skipped(root):
    write_frames(root / "mine" / "short", noise(0, 2, 8, 8))
    with pytest.warns(DataWarning, match=r"^skipped train clip 'short': 2 frames, and a window has 3"):
        task = build()
    assert names(task, "train") == ["b.avi", "walk"]


def test_frames_of_several_sizes_are_reported_and_used(root):
    write_frames(root / "mine" / "walk", noise(1, 3, 20, 20), "png", first=13)
    expected = r"mine/walk: frames of 2 sizes \(14×10, 20×20\); all were resized to 8×8$"
    for _ in range(2):
        with pytest.warns(DataWarning, match=expected):
            task = build()
    assert {len(window.footage) for window in task.examples("train")} == {10, 15}


def test_a_truncated_video_is_reported_and_used(root):
    video = root / "mine" / "b.avi"
    video.write_bytes(video.read_bytes()[:-450])
    for _ in range(2):
        with pytest.warns(DataWarning, match=r"mine/b\.avi: damaged \(.*\); using \d of 10 frames; download it again"):
            task = build()
    assert names(task, "train") == ["b.avi", "walk"]
    (length,) = {len(window.footage) for window in task.examples("train") if window.footage.name == "b.avi"}
    assert 3 <= length < 10


def cut_a_frame(root: Path) -> None:
    frame = root / "mine" / "walk" / "005.png"
    frame.write_bytes(frame.read_bytes()[:100])


def save_16_bits(root: Path) -> None:
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(root / "mine" / "walk" / "005.png")


UNREADABLE = {
    "a frame that cannot be read": (cut_a_frame, "root/mine/walk/005.png: cannot be read ("),
    "16 bits": (save_16_bits, "root/mine/walk/005.png: not an 8-bit image (Pillow mode 'I;16'); convert it"),
    "a text": (lambda root: (root / "mine" / "a.avi").write_text("a"), "root/mine/a.avi: cannot be decoded ("),
    "an empty video": (lambda root: (root / "mine" / "a.avi").touch(), "root/mine/a.avi: cannot be decoded ("),
    "a link": (lambda root: (root / "mine" / "a.avi").symlink_to("gone"), "root/mine/a.avi: cannot be read ("),
}


@pytest.mark.parametrize(("harm", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_clip_that_cannot_be_read_is_an_error_every_time(harm, message, root):
    harm(root)
    for _ in range(2):
        assert error_of().startswith(message)
