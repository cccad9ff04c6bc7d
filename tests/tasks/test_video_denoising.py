from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch

from cudt.data.frame_cache import Footage
from cudt.tasks.base import SEEN, SPLITS, Split
from cudt.config.tasks import VideoSection as VideoConfig
from cudt.tasks.video import VideoDenoising, build_video_task
from cudt.utils.errors import DataWarning, UserError
from tests.shapes import tiny_videos
from tests.videos import noise


def clip(name: str, length: int, seed: int = 0, corner: int = 0) -> Footage:
    """A clip whose frames differ; each starts with its number."""
    frames = noise(seed, length, 6, 7)
    frames[:, 0, 0] = np.arange(length)
    frames[:, 5, 6] = corner
    return Footage(name, frames, hashlib.blake2b(frames.tobytes()).hexdigest())


def settings(**changes: Any) -> VideoConfig:
    return VideoConfig(
        **{"name": "video", "frames": 4, "stride": 2, "validation_share": 0.25, **changes}
    )


def task(train: list[Footage] | None = None, **changes: Any) -> VideoDenoising:
    """Two training clips of 24 frames and a test clip of 13."""
    train = train or [clip("a", 24), clip("b", 24, seed=1)]
    made = build_video_task(settings(**changes), {"train": train, "test": [clip("c", 13, seed=2)]})
    made.read(SEEN)
    return made


def starts(made: VideoDenoising, split: Split) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for window in made.examples(split):
        found.setdefault(window.footage.name, []).append(window.start)
    return found


# ---------------------------------------------------------------- windows


def test_training_windows_are_a_stride_apart_and_the_others_do_not_overlap():
    made = task()
    assert starts(made, "train") == {"a": [*range(0, 15, 2)], "b": [*range(0, 15, 2)]}
    assert starts(made, "validation") == {"a": [18], "b": [18]}
    assert starts(made, "test") == {"c": [0, 4, 8]}


def test_the_end_of_each_training_clip_is_for_validation_and_shares_no_frame_with_training():
    made = task([clip("a", 24), clip("b", 40, seed=1)], stride=1)
    for name, cut in {"a": 18, "b": 30}.items():
        assert max(starts(made, "train")[name]) + 4 == cut
        assert min(starts(made, "validation")[name]) == cut


def test_a_clip_too_short_for_both_is_only_for_training():
    made = task([clip("a", 24), clip("short", 13)])
    assert starts(made, "train")["short"] == [0, 2, 4, 6, 8]
    assert list(starts(made, "validation")) == ["a"]


def test_validation_clips_are_used_completely():
    lengths = {"train": 8, "validation": 9, "test": 4}
    footage = {split: [clip(split, lengths[split])] for split in SPLITS}
    made = build_video_task(settings(), footage)
    assert [starts(made, split) for split in SPLITS] == [
        {"train": [0, 2, 4]},
        {"validation": [0, 4]},
        {"test": [0]},
    ]


def test_a_clip_shorter_than_a_window_is_skipped_with_a_warning():
    with pytest.warns(DataWarning) as warned:
        made = task([clip("a", 24), clip("walk/3", 3)])
    (message,) = (str(one.message) for one in warned)
    assert message == "skipped train clip 'walk/3': 3 frames, and a window has 4 (task.frames)"
    assert list(starts(made, "train")) == ["a"]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((3, 9, 9), r"^no train clip has 4 frames \(task\.frames\); lower it$"),
        (
            (9, 3, 9),
            r"^no validation clip has 4 frames \(task\.frames\); lower it or raise task\.validation_share$",
        ),
        ((9, 9, 3), r"^no test clip has 4 frames \(task\.frames\); lower it$"),
    ],
)
@pytest.mark.filterwarnings("ignore::cudt.utils.errors.DataWarning")
def test_a_split_without_windows_is_an_error(lengths, message):
    footage = {split: [clip(split, length)] for split, length in zip(SPLITS, lengths, strict=True)}
    with pytest.raises(UserError, match=message):
        build_video_task(settings(), footage).read(SPLITS)


# ---------------------------------------------------------------- limits and reproducibility


def test_a_limit_draws_windows_by_seed_and_keeps_their_order():
    whole = [window.id for window in task().examples("train")]
    few = task(limit={"train": 5, "test": 2})
    drawn = [window.id for window in few.examples("train")]
    assert len(drawn) == 5
    assert drawn == [name for name in whole if name in drawn]
    assert drawn != whole[:5]
    assert [len(few.examples(split)) for split in SPLITS] == [5, 2, 2]
    other = task(limit={"train": 5}, data_seed=1)
    assert [window.id for window in other.examples("train")] != drawn


def test_the_fingerprint_changes_with_the_data():
    b = clip("b", 24, seed=1)
    others = [
        task(),
        task([clip("a", 24, corner=1), b]),
        task([clip("x", 24), b]),
        task([b, clip("a", 24)]),
        task([clip("a", 24)]),
        task(stride=1),
        task(frames=5),
        task(validation_share=0.5),
        task(limit={"train": 5}),
        task(limit={"train": 5}, data_seed=1),
    ]
    assert len({other.fingerprint(SPLITS) for other in others}) == len(others)


# ---------------------------------------------------------------- batches, loss and metric


def test_a_batch_has_the_frames_and_ids_of_its_windows():
    made = task()
    windows = made.examples("train")[3:6]
    batch = made.collate(windows)
    assert batch["frames"].dtype == torch.uint8
    assert batch["frames"].shape == (3, made.n_frames, made.height, made.width) == (3, 4, 6, 7)
    assert np.array_equal(batch["frames"].numpy(), np.stack([window.frames for window in windows]))
    assert batch["ids"] == [window.id for window in windows]
    batch["frames"].zero_()
    assert windows[0].frames.any()


@pytest.fixture
def answered() -> tuple[VideoDenoising, dict[str, Any], torch.Tensor]:
    made = task()
    batch = made.collate(made.examples("test"))
    return (
        made,
        batch,
        torch.from_numpy(np.random.default_rng(5).normal(120, 80, batch["frames"].shape)).float(),
    )


def test_the_loss_equals_a_literal_loop(answered):
    made, batch, answer = answered
    expected = []
    for x, y in zip(batch["frames"], answer, strict=True):
        total = 0.0
        for t in range(4):
            for row in range(6):
                for column in range(7):
                    total += (float(y[t, row, column]) - float(x[t, row, column])) ** 2
        expected.append(total / 4)
    assert made.losses(answer, batch).tolist() == pytest.approx(expected, rel=1e-5)


def test_rmse_and_psnr_are_those_of_all_pixels(answered):
    made, batch, answer = answered
    mean_score = made.scores(answer, batch).mean().item()
    error = np.sqrt(np.mean((batch["frames"].numpy().astype(float) - answer.numpy()) ** 2))
    assert made.metric(mean_score) == pytest.approx(error, rel=1e-5)
    assert made.further_metrics(mean_score) == {
        "PSNR": pytest.approx(20 * math.log10(255 / error), rel=1e-5)
    }


def test_the_clean_frames_have_loss_zero_and_infinite_psnr():
    made = task()
    batch = made.collate(made.examples("test"))
    clean = batch["frames"].float()
    assert made.losses(clean, batch).tolist() == [0, 0, 0]
    assert made.metric(made.scores(clean, batch).mean().item()) == 0
    assert made.further_metrics(0.0) == {"PSNR": math.inf}


@pytest.mark.parametrize("limit", [{}, {"train": 3}])
def test_the_reference_is_the_loss_of_the_best_uniform_grey(limit):
    made = task(limit=limit)
    batch = made.collate(made.examples("train"))
    pixels = np.stack([window.frames for window in made.examples("train")]).astype(float)
    reference = made.reference_loss()
    assert reference == pytest.approx(6 * 7 * pixels.var(), rel=1e-12)

    def loss(shade: float) -> float:
        return made.losses(torch.full(batch["frames"].shape, shade), batch).mean().item()

    assert loss(pixels.mean()) == pytest.approx(reference, rel=1e-5)
    assert min(loss(pixels.mean() - 2), loss(pixels.mean() + 2)) > reference


def test_images_are_rounded_and_clamped_to_8_bits():
    values = torch.tensor([-3.0, 0.4, 0.6, 254.7, 300.0], requires_grad=True).reshape(1, 1, 1, 5)
    picture = task().pictures(values)
    assert picture.dtype == np.uint8
    assert picture.tolist() == [[[[0, 0, 1, 255, 255]]]]


@pytest.mark.parametrize(
    ("windows_of_clips", "ids", "wanted"),
    [
        (False, ["a/0", "a/1", "b/0"], ["a/0", "a/1", "b/0"]),
        (True, ["a/0", "a/1", "b/0"], ["a", "a", "b"]),
        # One clip has no standard error; that over its windows is better than none.
        (True, ["a/0", "a/1"], ["a/0", "a/1"]),
    ],
)
def test_windows_of_one_clip_are_one_measurement(windows_of_clips, ids, wanted):
    task = tiny_videos()
    task.windows_of_clips = windows_of_clips
    assert task.independent(ids) == wanted
