from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cudt.evaluation import samples
from cudt.models import dust
from cudt.models.layer_losses import LayerwiseLosses, draw_noise, measure
from cudt.noise.source import NoiseSource
from cudt.runs.run import Run
from tests.conftest import tiny_recipe
from tests.shapes import tiny_videos

NOISE = NoiseSource("gaussian", 40.0, 0)
LEVELS = [0.0, 0.1, 0.4, 0.5, 1.0]


@pytest.fixture
def layerwise() -> LayerwiseLosses:
    task = tiny_videos()
    config = dust.Config(name="dust", layers=2, patch=4, atoms=6)
    return LayerwiseLosses(dust.build(config, task, None), task)


def save(layerwise: LayerwiseLosses, folder: Path, count: int, noise: NoiseSource = NOISE) -> list[Path]:
    return samples.save(Run(folder, tiny_recipe()), layerwise, noise, LEVELS, count)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "samples").iterdir())


# ---------------------------------------------------------------- what is shown


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


# ---------------------------------------------------------------- files


def test_a_sample_is_a_strip_and_a_moving_picture_with_all_frames(layerwise, tmp_path):
    made = save(layerwise, tmp_path, 2)
    stems = ["gaussian-0-test-clip-0-0", "gaussian-3-test-clip-1-4"]
    assert [path.name for path in made] == [f"{stem}.{kind}" for stem in stems for kind in ("png", "gif")]
    assert names(tmp_path) == sorted(path.name for path in made)
    for path in made:
        with Image.open(path) as picture:
            picture.load()
            assert picture.format == path.suffix[1:].upper()
            assert getattr(picture, "n_frames", 1) == (4 if path.suffix == ".gif" else 1)
