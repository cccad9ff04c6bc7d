"""Whole runs of encoders and vision transformers with adapters: training, resuming, evaluation,
export."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cudt.config import recipe
from cudt.models.encoder import Encoder
from cudt.models.vit import ViT
from cudt.runs.run import Run
from cudt.training import launch, trained
from cudt.training.trainer import Trainer
from cudt.utils.errors import TrainingInterruptedError
from tests import shapes, texts
from tests.cards import read_cards
from tests.conftest import quiet
from tests.pretrained import tiny_pretrained, tiny_vision
from tests.shapes import batch_of

LORA = "{rank: 2, alpha: 4.0, dropout: 0.1}"
ENCODERS = ("bert", "roberta", "mpnet", "deberta-v2", "albert", "modernbert", "distilbert")
#: Family, readout and whether it has adapters; the frames are smaller than the images of two of
#: them.
PICTURES = {
    "vit": ("vit", "direct", True),
    "vit whole": ("vit", "direct", False),
    "vit linear": ("vit", "linear", True),
    "dinov2": ("dinov2", "linear", True),
    "dinov2 whole": ("dinov2", "linear", False),
    "dinov3": ("dinov3", "linear", True),
    "dinov3 whole": ("dinov3", "direct", False),
}
NAMES = (*ENCODERS, *PICTURES)
TEXT = "the film was good and the plot was dull."
FRAME = [[float(16 * row + column) for column in range(16)] for row in range(16)]

CODE = """
folders, text, frame = given
for name, folder in folders.items():
    os.chdir(folder)
    read = {}
    other = f"torch.tensor({frame})"
    exec(lines_of().replace('"a text"', json.dumps(text)).replace("torch.full((16, 16), 128.0)", other), read)
    found[name] = read["logits"][0].tolist() if "logits" in read else read["answer"].tolist()
    if "label" in read:
        assert read["label"] in ("good", "bad")
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    texts.write_reviews(folder)
    return folder


def recipe_of(root: Path, name: str) -> Path:
    if name in ENCODERS:
        where = root / name
        where.mkdir(exist_ok=True)
        path = texts.write_recipe(
            where, tiny_pretrained(where / "weights", name), readout="mean", lora=LORA
        )
        return path.rename(where / f"{name}.yaml")
    family, readout, has_adapters = PICTURES[name]
    stem = name.replace(" ", "-")
    sizes: dict[str, Any] = {"hidden_size": 32} if readout == "linear" else {}
    if family == "dinov2":
        # Twice the frames, and positions for a third size.
        sizes |= {
            "processor": {"size": {"height": 32, "width": 32}, "resample": 3},
            "image_size": 24,
        }
    weights = tiny_vision(root / stem, family, **sizes)
    section = f"{{name: vit, pretrained: {weights}, readout: {readout}, lora: {LORA if has_adapters else 'null'}}}"
    return shapes.write_recipe(root, stem, section)


def train(path: Path, root: Path, out: Path, *settings: str, objective: str = "constrained") -> Run:
    return launch.train(
        recipe.load(str(path), settings, objective=objective), out, "cpu", root, quiet()
    )


@pytest.fixture(scope="module")
def recipes(root) -> dict[str, Path]:
    return {name: recipe_of(root, name) for name in NAMES}


@pytest.fixture(scope="module")
def runs(recipes, root) -> dict[str, Run]:
    return {name: train(path, root, root / "outputs") for name, path in recipes.items()}


@pytest.fixture(scope="module")
def read(runs) -> dict[str, Any]:
    """What the cards' lines compute in a Python that never heard of cudt."""
    return read_cards(CODE, {name: str(run.path) for name, run in runs.items()}, TEXT, FRAME)


def is_adapted(name: str) -> bool:
    return name in ENCODERS or PICTURES[name][2]


def has_head(name: str) -> bool:
    return name in ENCODERS or PICTURES[name][1] == "linear"


@pytest.mark.parametrize("name", [name for name in NAMES if is_adapted(name)])
def test_checkpoints_hold_adapters_and_readout_only(runs, name):
    weights = load_file(runs[name].path / "checkpoints" / "best.safetensors")
    others = {key for key in weights if "lora_" not in key}
    assert others == ({"model.head.weight", "model.head.bias"} if has_head(name) else set())
    assert len(weights) > len(others)
    assert runs[name].info().frozen_weights


@pytest.mark.parametrize("name", ["bert", "modernbert", "vit", "dinov2"])
def test_an_interrupted_run_resumes_bit_for_bit(recipes, root, runs, tmp_path, monkeypatch, name):
    log = Trainer._log_update

    def log_and_interrupt(self, *arguments):
        log(self, *arguments)
        if self.state.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_log_update", log_and_interrupt)
        with pytest.raises(TrainingInterruptedError):
            train(recipes[name], root, tmp_path)
    parts = train(recipes[name], root, tmp_path)
    for file in ("history.csv", "layers.csv", "checkpoints/best.safetensors"):
        assert (runs[name].path / file).read_bytes() == (parts.path / file).read_bytes()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_lines_of_the_card_give_the_same_answers(runs, root, read, name):
    layerwise = trained.load(runs[name], "cpu", root)
    model, task = layerwise.model.eval(), layerwise.task
    if name in ENCODERS:
        assert isinstance(model, Encoder)
        batch = dict(task.tokenizer(TEXT, return_tensors="pt"))
    else:
        assert isinstance(model, ViT)
        batch = batch_of(torch.tensor(FRAME).expand(1, 1, -1, -1))
    answer = model.readout(model.layer_states(model.signal(batch)[0], batch)[-1], batch)
    expected = answer[0] if name in ENCODERS else answer[0, 0]
    assert torch.allclose(
        torch.tensor(read[name]), expected, rtol=1e-4, atol=1e-3 if name in PICTURES else 1e-5
    )
