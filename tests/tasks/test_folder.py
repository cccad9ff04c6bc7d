from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cudt.tasks.base import SEEN
from cudt.tasks import folder
from cudt.tasks.video import VideoDenoising
from cudt.utils.errors import UserError
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


def build(
    train: str = "mine", test: str = "test", root: Path | None = Path("root"), **more: Any
) -> VideoDenoising:
    settings = {"frames": 3, "stride": 1, "size": 8, "validation_share": 0.3, **more}
    made = folder.build(
        folder.Config(name="folder", train=train, test=test, **settings), root, None
    )
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


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (
            {"train": "mine", "test": "mine"},
            "root/mine/b.avi: both in task.train and in task.test; ",
        ),
        (
            {"train": "mine", "test": "mine/walk"},
            "root/mine/walk: both in task.train and in task.test; ",
        ),
        (
            {"train": "mine", "validation": "test"},
            "root/test/c.mp4: both in task.validation and in task.test; ",
        ),
    ],
)
def test_a_clip_in_two_splits_is_refused(folders, message):
    assert error_of(**folders) == message + "use folders that share no clips"


def test_folders_are_searched_below_the_data_root_and_then_in_the_current_folder(
    root, tmp_path, monkeypatch
):
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
    assert (
        message == f"task.{split}: folder '{name}' does not exist below root or the current folder"
    )


def test_a_folder_without_clips_is_reported_with_what_a_clip_is(root):
    (root / "empty" / "inside").mkdir(parents=True)
    (root / "empty" / "notes.txt").touch()
    message = error_of(test="empty")
    assert message.startswith("task.test: no clips in 'root/empty'; a clip is a video (.avi, .mp4,")
    assert ".tif" in message
