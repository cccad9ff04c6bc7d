from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cudt.evaluation import samples
from cudt.models import dust
from cudt.models.layer_losses import LayerwiseLosses, draw_noise
from cudt.noise import NoiseSource
from cudt.runs.run import Run
from tests.conftest import tiny_recipe
from tests.measured import measure
from tests.shapes import tiny_videos

NOISE = NoiseSource("gaussian", 40.0, 0)
LEVELS = [0.0, 0.1, 0.4, 0.5, 1.0]


@pytest.fixture
def layerwise() -> LayerwiseLosses:
    task = tiny_videos()
    config = dust.Config(name="dust", layers=2, patch=4, atoms=6)
    return LayerwiseLosses(dust.build(config, task, None), task)


def save(
    layerwise: LayerwiseLosses, folder: Path, count: int, noise: NoiseSource = NOISE
) -> list[Path]:
    return samples.save(Run(folder, tiny_recipe()), layerwise, noise, LEVELS, count)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "samples").iterdir())


def test_a_strip_shows_the_lowest_the_middle_and_the_highest_level():
    assert samples.spread(LEVELS) == samples.spread(LEVELS[::-1]) == [0.0, 0.4, 1.0]
    assert samples.spread([0.0, 1.0]) == [0.0, 1.0]
    assert samples.spread([0.5]) == [0.5]


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_a_sample_shows_what_evaluation_measures(layerwise, gamma):
    task, model = layerwise.task, layerwise.model
    example = task.examples("test")[1]
    sample = samples.look(layerwise, example, NOISE, gamma)
    batch = task.collate([example])
    (measured,) = measure(layerwise, [batch], NOISE, [gamma])
    signal, _ = model.signal(batch)
    noisy = signal + gamma * draw_noise(model, batch, NOISE)
    errors = [(noisy - signal).square().mean().item(), *measured.scores.flatten().tolist()]
    assert sample.metrics == [f"{error**0.5:.1f}" for error in errors]
    assert (sample.id, sample.gamma) == (example.id, gamma)
    assert np.array_equal(sample.clean, example.frames)
    assert np.array_equal(sample.noisy, noisy[0].round().clamp(0, 255).byte().numpy())
    with torch.no_grad():
        answers = [model.readout(state, batch)[0] for state in model.layer_states(noisy, batch)]
    assert len(sample.layers) == len(answers) == 2
    for shown, answer in zip(sample.layers, answers, strict=True):
        assert shown.dtype == np.uint8
        assert np.abs(shown - answer.clamp(0, 255).numpy()).max() <= 0.501


def test_a_strip_has_a_row_for_each_level_and_a_column_for_each_layer(layerwise, tmp_path):
    (path,) = save(layerwise, tmp_path, 1)
    with Image.open(path) as picture:
        shown = np.asarray(picture.convert("L"), dtype=int)
    for row, gamma in enumerate((0.0, 0.4, 1.0)):
        sample = samples.look(layerwise, layerwise.task.examples("test")[0], NOISE, gamma)
        for column, frames in enumerate((sample.clean, sample.noisy, *sample.layers)):
            top, left = 4 + row * (18 + 160 + 4) + 18, 4 + column * (160 + 4)
            pixels = shown[top + 5 : top + 160 : 10, left + 5 : left + 160 : 10]
            # Pictures have 32 greys, 8.2 apart.
            assert np.abs(pixels - frames[len(frames) // 2]).max() <= 5
            # The caption is above it.
            assert shown[top - 18 : top, left : left + 160].min() < 128


def test_new_samples_take_the_place_of_old_ones_of_the_same_noise(layerwise, tmp_path):
    save(layerwise, tmp_path, 4)
    save(layerwise, tmp_path, 1, NoiseSource("uniform", 40.0, 0))
    assert len(names(tmp_path)) == 5
    save(layerwise, tmp_path, 1)
    assert names(tmp_path) == [f"{kind}-0-test-clip-0-0.png" for kind in ("gaussian", "uniform")]
