"""Data without any variation: σ_x = 0, so that noise of every level γ would be none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from cudt.config import recipe
from cudt.config.recipe import NamedRecipe
from cudt.evaluation.evaluate import Grid, evaluate_ood
from cudt.utils.errors import DataWarning, UserError
from tests.conftest import train_quietly
from tests.pretrained import tiny_pretrained
from tests.texts import write_recipe, write_reviews
from tests.videos import write_frames


@pytest.fixture
def constant_video(tmp_path, monkeypatch) -> Path:
    """A recipe on clips of one grey."""
    monkeypatch.setenv("CUDT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for split in ("train", "validation", "test"):
        write_frames(tmp_path / split / "clip", np.full((8, 16, 16), 128, np.uint8))
    path = tmp_path / "grey.yaml"
    path.write_text(
        "base: smoke-video\n"
        "task: {name: folder, train: train, validation: validation, test: test, size: 16}\n"
        "descent: {reference: 100000.0}\n"
        "training: {epochs: 2, batch_size: 1}\n"
        "evaluation: {gammas: [0, 0.5, 1]}\n"
    )
    return path


def load(path: Path, *overrides: str) -> NamedRecipe:
    return recipe.load(str(path), overrides, objective="constrained", seed=0)


def test_training_with_noise_on_constant_video_is_refused(constant_video, tmp_path):
    with (
        pytest.warns(DataWarning, match="σ_x = 0"),
        pytest.raises(UserError, match="σ_x = 0: the clean signal"),
    ):
        train_quietly(load(constant_video), tmp_path / "out")


def test_every_level_above_0_of_constant_video_is_refused_in_evaluation(constant_video, tmp_path):
    with pytest.warns(DataWarning, match="σ_x = 0"):
        run = train_quietly(load(constant_video, "noise.gamma_train=0"), tmp_path / "out")
    assert run.finished_info().sigma_x.evaluation == 0
    for gammas in ([0.0, 0.5], [0.5]):
        with pytest.raises(UserError, match=r"σ_x = 0: .* use γ = 0 or discrete noise"):
            evaluate_ood(run, Grid(gammas), "cpu", None, lambda items, *_: items)


def test_embeddings_that_are_all_0_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path)
    folder = Path(tiny_pretrained(tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"].zero_()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with (
        pytest.warns(DataWarning, match="σ_x = 0"),
        pytest.raises(UserError, match="pretrained weights"),
    ):
        train_quietly(load(write_recipe(tmp_path, str(folder), readout="mean")), tmp_path / "out")
