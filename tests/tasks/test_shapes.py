from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from cudt.tasks.base import SPLITS
from cudt.tasks import shapes
from cudt.tasks.shapes import Image, make_clip
from cudt.tasks.video import VideoDenoising


def build(**changes: Any) -> VideoDenoising:
    settings = {"size": 16, "train": 3, "validation": 2, "test": 2, "clip_length": 12, "frames": 4}
    return shapes.build(shapes.Config(name="shapes", **{**settings, **changes}), None, None)


def clips_of(task: VideoDenoising) -> list[Image]:
    found = {
        (split, window.footage.name): window.footage
        for split in SPLITS
        for window in task.examples(split)
    }
    return [footage.frames[:] for footage in found.values()]


def test_every_split_has_its_clips_and_all_clips_differ():
    made = clips_of(build())
    assert [clip.shape for clip in made] == [(12, 16, 16)] * 7
    assert not any(np.array_equal(one[0], other[0]) for one, other in combinations(made, 2))


def test_the_defaults_give_the_number_of_windows_that_the_recipe_expects():
    task = shapes.build(shapes.Config(name="shapes"), None, None)
    assert [len(task.examples(split)) for split in SPLITS] == [16 * 5, 4 * 3, 4 * 3]
    assert (task.n_frames, task.height, task.width) == (8, 64, 64)


def test_the_videos_depend_on_the_seed():
    one, again, other = build(data_seed=1), build(data_seed=1), build(data_seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(clips_of(one), clips_of(again), strict=True))
    assert not any(
        np.array_equal(a, b) for a, b in zip(clips_of(one), clips_of(other), strict=True)
    )
    assert one.fingerprint(SPLITS) == again.fingerprint(SPLITS) != other.fingerprint(SPLITS)


@pytest.mark.parametrize("seed", range(5))
def test_something_moves_over_a_fixed_background_in_every_clip(seed):
    clip: Image = make_clip(np.random.default_rng(seed), 200, 32).astype(int)
    still = np.median(clip, axis=0)
    moving = clip != still
    assert moving.any((1, 2)).all()
    assert moving.mean() < 0.4
    # The background has many shades, and the shapes are much brighter or darker than its mean.
    assert len(np.unique(still)) > 20
    assert np.abs(clip[moving] - np.median(still)).mean() > 40


@pytest.mark.parametrize("seed", range(5))
def test_shapes_stay_inside_the_image(seed):
    shape = shapes._Shape(np.random.default_rng(seed), 64)
    rows, columns = np.mgrid[:64, :64] + 0.5
    areas = np.array([shape.covers(rows, columns, time).sum() for time in range(300)])
    expected = shape.radius**2 * (np.pi if shape.is_disc else 4)
    assert np.abs(areas / expected - 1).max() < 0.35
    positions = np.array([shape._bounced(shape.centre + time * shape.speed) for time in range(300)])
    assert (positions >= shape.radius).all()
    assert (positions <= 64 - shape.radius).all()
    # It never moves further than its speed, even at the edges.
    assert (np.abs(np.diff(positions, axis=0)) <= np.abs(shape.speed) + 1e-9).all()
