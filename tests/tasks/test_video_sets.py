from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudt.data import frame_cache
from cudt.data.frame_cache import Footage
from cudt.tasks.base import SEEN, SPLITS, Split
from cudt.tasks import avenue, shanghaitech, ucsd
from cudt.tasks.video import VideoDenoising
from cudt.utils.errors import UserError
from tests.videos import drift, noise, write_frames, write_video

REAL = os.environ.get("CUDT_DATA_ROOT")
real_data = pytest.mark.skipif(
    not REAL, reason="needs real data: set CUDT_DATA_ROOT to the folder that holds it"
)
MODULES: dict[str, Any] = {"ucsd": ucsd, "avenue": avenue, "shanghaitech": shanghaitech}
SETS = {"ucsd": ucsd.SETS["ped2"], "avenue": avenue.SET, "shanghaitech": shanghaitech.SET}


def write_ucsd(root: Path) -> None:
    base = root / "ucsd" / "UCSD_Anomaly_Dataset.v1p2"
    for walkway, height, width in (("UCSDped1", 16, 24), ("UCSDped2", 24, 36)):
        for number, length in ((1, 12), (2, 10), (10, 11)):
            clip = write_frames(
                base / walkway / "Train" / f"Train{number:03d}",
                noise(number, length, height, width),
            )
            (clip / "._001.tif").write_bytes(b"\x00\x05\x16\x07")
            (clip / ".DS_Store").touch()
        write_frames(base / walkway / "Test" / "Test001", noise(7, 9, height, width))
        write_frames(base / walkway / "Test" / "Test001_gt", noise(8, 9, height, width), "bmp")
        (base / walkway / "Test" / f"{walkway}.m").write_text(
            "TestVideoFile{end+1}.gt_frame = [61:180];\n"
        )
        (base / walkway / "Test" / ".DS_Store").touch()
    (base / "README.txt").touch()


def write_avenue(root: Path) -> None:
    base = root / "avenue" / "Avenue Dataset"
    for folder, lengths in (
        ("training_videos", {"01": 12, "02": 10, "10": 11}),
        ("testing_videos", {"01": 9}),
    ):
        for name, length in lengths.items():
            write_video(base / folder / f"{name}.avi", drift(length, length))
    (base / "training_vol").mkdir()
    (base / "training_vol" / "vol01.mat").touch()
    (base / "Readme.txt").touch()


def write_shanghaitech(root: Path) -> None:
    base = root / "shanghaitech"
    for name, length in (("01_001", 12), ("01_002", 10), ("01_010", 11)):
        write_video(base / "training" / "videos" / f"{name}.avi", drift(length, length))
    write_frames(base / "testing" / "frames" / "01_0014", noise(1, 9, 24, 36, 3), "jpg", first=0)
    (base / "testing" / "test_frame_mask").mkdir()
    (base / "testing" / "test_frame_mask" / "01_0014.npy").touch()


WRITERS = {"ucsd": write_ucsd, "avenue": write_avenue, "shanghaitech": write_shanghaitech}


@pytest.fixture(params=MODULES)
def name(request, tmp_path, monkeypatch) -> str:
    """A dataset below `tmp_path` as it is downloaded, with a separate cache."""
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))
    WRITERS[request.param](tmp_path)
    return request.param


def build(name: str, root: Path, **changes: Any) -> VideoDenoising:
    module = MODULES[name]
    settings = {"frames": 3, "stride": 1, "size": 8, "validation_share": 0.3}
    made: VideoDenoising = module.build(
        module.Config(name=name, **{**settings, **changes}), root, None
    )
    made.read(SEEN)
    return made


def clips_of(task: VideoDenoising, split: Split) -> dict[str, int]:
    return {window.footage.name: len(window.footage) for window in task.examples(split)}


# ---------------------------------------------------------------- datasets as they are downloaded


EXPECTED: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "ucsd": (
        {
            "UCSDped2/Train/Train001": 12,
            "UCSDped2/Train/Train002": 10,
            "UCSDped2/Train/Train010": 11,
        },
        {"UCSDped2/Test/Test001": 9},
    ),
    "avenue": (
        {"training_videos/01.avi": 12, "training_videos/02.avi": 10, "training_videos/10.avi": 11},
        {"testing_videos/01.avi": 9},
    ),
    "shanghaitech": (
        {
            "training/videos/01_001.avi": 12,
            "training/videos/01_002.avi": 10,
            "training/videos/01_010.avi": 11,
        },
        {"testing/frames/01_0014": 9},
    ),
}


def test_a_dataset_is_read_as_it_is_downloaded_and_other_files_are_skipped(name, tmp_path):
    task = build(name, tmp_path)
    train, test = EXPECTED[name]
    assert clips_of(task, "train") == clips_of(task, "validation") == train
    assert list(clips_of(task, "train")) == list(train)
    assert clips_of(task, "test") == test
    assert (task.height, task.width, task.n_frames) == (8, 8, 3)
    assert [len(task.examples(split)) for split in SPLITS] == [6 + 5 + 6, 3, 3]


def test_two_passes_give_the_same_windows_for_a_seed(name, tmp_path, monkeypatch):
    limit = {"train": 5}
    one = build(name, tmp_path, limit=limit, data_seed=4)
    from_cache = build(name, tmp_path, limit=limit, data_seed=4)
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "another"))
    decoded_again = build(name, tmp_path, limit=limit, data_seed=4)
    for other in (from_cache, decoded_again):
        assert other.fingerprint(SPLITS) == one.fingerprint(SPLITS)
        for split in SPLITS:
            for a, b in zip(one.examples(split), other.examples(split), strict=True):
                assert a.id == b.id
                assert np.array_equal(a.frames, b.frames)
    drawn = [window.id for window in one.examples("train")]
    assert [
        window.id for window in build(name, tmp_path, limit=limit, data_seed=5).examples("train")
    ] != drawn


def test_both_walkways_of_ucsd_can_be_chosen(tmp_path):
    write_ucsd(tmp_path)
    assert all(
        "UCSDped1" in clip for clip in clips_of(build("ucsd", tmp_path, subset="ped1"), "train")
    )


def test_the_folder_of_the_archive_may_be_missing_or_renamed(name, tmp_path):
    whole = build(name, tmp_path).fingerprint(SPLITS)
    found = SETS[name]
    found.status(tmp_path).folder.rename(tmp_path / "base")
    for target in (tmp_path / found.folder, tmp_path / found.folder / "unpacked"):
        shutil.rmtree(tmp_path / found.folder, ignore_errors=True)
        shutil.copytree(tmp_path / "base", target)
        assert build(name, tmp_path).fingerprint(SPLITS) == whole


# ---------------------------------------------------------------- missing data


def test_a_split_without_clips_is_reported_with_its_folder(name, tmp_path):
    found = SETS[name]
    for clip in found.find(tmp_path)["test"]:
        for file in clip.files:
            file.unlink()
    with pytest.raises(
        UserError, match=rf"{found.folders['test']}: no clips \(\*\..*\); download them from http"
    ):
        build(name, tmp_path)
    status = found.status(tmp_path)
    assert status.parts == {
        "train": "3 clips, 0 decoded to 160×160",
        "test": "0 clips, 0 decoded to 160×160",
    }
    assert status.problem == f"no clips in {found.folders['test']}"


# ---------------------------------------------------------------- the real datasets


REAL_CLIPS: dict[str, dict[str, int]] = {
    "ucsd": {
        "UCSDped2/Train/Train001": 120,
        "UCSDped2/Train/Train002": 150,
        "UCSDped2/Train/Train003": 150,
        "UCSDped2/Train/Train004": 180,
        "UCSDped2/Test/Test001": 180,
        "UCSDped2/Test/Test002": 180,
    },
    "avenue": {
        "training_videos/12.avi": 145,
        "testing_videos/08.avi": 36,
        "testing_videos/21.avi": 76,
    },
    "shanghaitech": {
        "training/videos/01_001.mp4": 433,
        "testing/frames/01_0014": 160,
        "testing/frames/01_0016": 160,
    },
}


def real_footage(name: str, size: int) -> dict[str, Footage]:
    """The clips of a dataset that these tests know; it may have more."""
    clips = [clip for found in SETS[name].find(Path(str(REAL))).values() for clip in found]
    known = [clip for clip in clips if clip.name in REAL_CLIPS[name]]
    return {footage.name: footage for footage in frame_cache.prepare(known, size, name)}


@real_data
@pytest.mark.parametrize(
    ("name", "size"), [("ucsd", 160), ("avenue", 32), ("shanghaitech", 32)], indirect=False
)
def test_the_real_clips_have_the_expected_frames(name, size):
    footage = real_footage(name, size)
    assert {clip: len(one) for clip, one in footage.items()} == REAL_CLIPS[name]
    for one in footage.values():
        frames = one.frames[:]
        assert frames.shape[1:] == (size, size)
        # No frame is uniform, and something moves.
        assert frames.std((1, 2)).min() > 10
        assert (frames[1:].astype(int) - frames[:-1]).std() > 0.5
