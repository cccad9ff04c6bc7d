"""Video denoising: windows, loss and metrics, and where clips come from."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cudt.cli import main as cli
from cudt.config.tasks import TASKS, VideoSection
from cudt.data.video import Footage, digest_of
from cudt.tasks.base import SPLITS, Split, build_task, missing_data
from cudt.tasks.video import VideoDenoising
from cudt.utils.errors import DataWarning, UserError
from tests.videos import drift, noise, write_frames, write_video

REAL = os.environ.get("CUDT_DATA_ROOT")
#: Training and test clips of the published sets, as their archives unpack.
SETS = {
    "ucsd": ("UCSD_Anomaly_Dataset.v1p2/", "UCSDped2/Train/Train{:03d}", "UCSDped2/Test/Test001"),
    "avenue": ("Avenue Dataset/", "training_videos/{:02d}", "testing_videos/01"),
    "shanghaitech": ("", "training/videos/01_{:03d}", "testing/frames/01_0014"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))


def clip(name: str, length: int, seed: int = 0) -> Footage:
    frames = noise(seed, length, 6, 6)
    return Footage(name, frames, digest_of(frames))


def task(*train: Footage, **changes: Any) -> VideoDenoising:
    """By default two training clips of 24 frames, and a test clip of 13."""
    clips = {
        "train": train or (clip("a", 24), clip("b", 24, seed=1)),
        "test": [clip("c", 13, seed=2)],
    }
    settings = {"name": "video", "frames": 4, "stride": 2, "size": 6, "validation_share": 0.25}
    section = VideoSection.model_validate({**settings, **changes})
    return VideoDenoising(section, lambda split: clips[split])


def starts(made: VideoDenoising, split: Split) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for window in made.examples(split):
        found.setdefault(window.footage.name, []).append(window.start)
    return found


def test_training_windows_are_a_stride_apart_and_validation_is_the_end_of_each_clip():
    made = task(clip("a", 24), clip("b", 40, seed=1), clip("short", 13))
    # A clip that is too short for both parts is for training.
    ends = {"a": 15, "b": 27, "short": 10}
    assert starts(made, "train") == {name: [*range(0, end, 2)] for name, end in ends.items()}
    assert starts(made, "validation") == {"a": [18], "b": [30, 34]}
    assert [window.id for window in made.examples("test")] == ["test/c/0", "test/c/4", "test/c/8"]


def test_a_clip_shorter_than_a_window_is_skipped_and_a_split_of_them_is_refused():
    with pytest.warns(DataWarning, match="skipped train clip 'walk/3': shorter than task.frames"):
        assert list(starts(task(clip("a", 24), clip("walk/3", 3)), "train")) == ["a"]
    with pytest.raises(UserError, match="no validation clip has 4 frames"):
        task(clip("a", 9)).examples("validation")


def test_clips_of_the_training_data_are_reported():
    with pytest.warns(DataWarning, match="test data: 1 of 1 are also in the training data"):
        assert len(task(clip("a", 24), clip("c2", 13, seed=2)).examples("test")) == 3


def test_loss_and_rmse_are_those_of_all_pixels():
    made = task()
    batch = made.collate(made.examples("test"))
    assert batch["frames"].shape == (3, made.n_frames, made.height, made.width) == (3, 4, 6, 6)
    clean = made.examples("test")[0].footage.frames[:12].reshape(3, 4, 6, 6)
    assert np.array_equal(batch["frames"].numpy(), clean)
    answer = np.random.default_rng(5).normal(120, 80, clean.shape)
    squares = (answer - clean.astype(float)) ** 2
    losses = made.losses(torch.from_numpy(answer), batch).tolist()
    assert losses == pytest.approx([one.sum() / 4 for one in squares])
    mean_score = made.scores(torch.from_numpy(answer), batch).mean().item()
    error = math.sqrt(squares.mean())
    assert made.metric(mean_score) == pytest.approx(error)


def test_the_reference_is_the_loss_of_the_best_uniform_grey():
    made = task(limit={"train": 3})
    batch = made.collate(made.examples("train"))
    pixels = batch["frames"].double()

    def loss(shade: float) -> float:
        return made.losses(torch.full_like(pixels, shade), batch).mean().item()

    grey = pixels.mean().item()
    assert made.reference_loss() == pytest.approx(loss(grey), rel=1e-12)
    assert min(loss(grey - 2), loss(grey + 2)) > made.reference_loss()


def section(name: str, **changes: Any) -> Any:
    shape = {"frames": 3, "stride": 1, "size": 8, "validation_share": 0.3}
    return TASKS[name].model_validate({"name": name, **shape, **changes})


def write_set(root: Path, name: str) -> None:
    archive, train, test = SETS[name]
    for number, length in ((1, 12), (2, 10), (10, 11)):
        frames = noise(number, length, 16, 24)
        write_frames(root / name / archive / train.format(number), frames)
    write_frames(root / name / archive / test, noise(len(name), 9, 16, 24))


def test_own_folders_are_below_the_data_root_or_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "root"
    write_frames(root / "mine" / "walk", noise(0, 12, 10, 14), "png")
    write_video(root / "mine" / "b.avi", drift(0, 10))
    write_video(root / "test" / "c.mp4", drift(1, 9))

    def own(train: str, test: str) -> Any:
        return build_task(section("folder", train=train, test=test), Path("root"), None)

    made = own("mine", "test")
    found = starts(made, "train")
    assert {name: len(of_clip) for name, of_clip in found.items()} == {"b.avi": 5, "walk": 6}
    assert starts(made, "test") == {"c.mp4": [0, 3, 6]}
    again = own("root/mine", str((root / "test").resolve()))
    assert again.fingerprint(SPLITS) == made.fingerprint(SPLITS)
    with pytest.raises(UserError, match="folder train data: no clips in a folder gone in root or"):
        own("gone", "test")


@pytest.mark.parametrize("name", SETS)
def test_published_sets_are_found_where_their_archives_unpack(name, tmp_path):
    assert "download the archive from http" in missing_data(section(name), tmp_path)
    write_set(tmp_path, name)
    assert missing_data(section(name), tmp_path) == ""
    made = build_task(section(name), tmp_path, None)
    names = dict.fromkeys(window.footage.name for window in made.examples("train"))
    assert list(names) == [SETS[name][1].format(number) for number in (1, 2, 10)]
    ids = [window.id for window in made.examples("test")]
    assert ids == [f"test/{SETS[name][2]}/{start}" for start in (0, 3, 6)]


def test_cudt_data_says_what_is_here_and_how_to_get_the_rest(tmp_path):
    write_set(tmp_path, "ucsd")
    options = ["data", "--data-root", str(tmp_path)]
    lines = CliRunner().invoke(cli.app, options, catch_exceptions=False).output.splitlines()
    names = [line.split()[0] for line in lines[2:]]
    assert names == ["imdb", "mnli", "shanghaitech", "ucsd", "ucsd"]
    assert ["missing" in line for line in lines] == [True] * 6 + [False]
    assert "`hf download stanfordnlp/imdb --repo-type dataset" in lines[2]


@pytest.mark.skipif(not REAL, reason="needs real data: set CUDT_DATA_ROOT")
@pytest.mark.parametrize("name", SETS)
def test_the_real_clips_are_decoded(name):
    made = build_task(section(name, size=16, limit={"train": 50, "test": 9}), Path(str(REAL)), None)
    assert [len(made.examples(split)) for split in ("train", "test")] == [50, 9]
    frames = made.collate(made.examples("test"))["frames"].double()
    assert 40 < frames.mean() < 220
    assert frames.std() > 10
