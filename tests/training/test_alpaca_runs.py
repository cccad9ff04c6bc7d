"""Whole runs of instruction tuning on a tiny Llama, from a file to tables."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch
from cudt.evaluation.grid import Grid
from safetensors.torch import load_file, save_file

from cudt.data.loader import batches
from cudt.evaluation.evaluate import evaluate_ood
from cudt.models.assemble import TrainingProblem, assemble
from cudt.models.layer_losses import LayerwiseLosses
from cudt.noise import NoiseSource
from cudt.runs.info import MetricInfo
from cudt.runs.run import Run, open_run
from cudt.tasks.base import IGNORED
from cudt.training.checkpoint import load_weights
from cudt.training.trainer import Trainer
from cudt.utils.errors import DataWarning, TrainingInterruptedError, UserError
from tests.instructions import train, write_instructions, write_recipe
from tests.measured import measure
from tests.pretrained import tiny_llama

CPU = torch.device("cpu")
#: Where a few updates tell as much as many.
FEW = ("task.limit={train: 8, validation: 4}", "training.batch_size=4")
SAMPLED = ("readout.tokens=3",)
#: Weights of LoRA with rank 2 on q, k, v, o, gate, up and down of three layers.
ADAPTERS = 2 * 3 * (32 + 24 + 24 + 32 + 48 + 48 + 48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Instructions, a tiny Llama and a recipe for them."""
    folder = tmp_path_factory.mktemp("instructions")
    write_instructions(folder)
    write_recipe(folder, tiny_llama(folder / "llama"))
    return folder


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> Run:
    return train(folder, tmp_path_factory.mktemp("outputs"), "training.epochs=1")


@pytest.fixture
def run(trained, tmp_path) -> Run:
    """A copy of a finished run."""
    shutil.copytree(trained.path, tmp_path / "run")
    return open_run(tmp_path / "run")


def problem_of(run: Run, folder: Path) -> TrainingProblem:
    """The run's best model, built anew."""
    problem = assemble(run.recipe, folder, CPU)
    problem.layerwise.load_learned_weights(load_weights(run))
    return problem


def evaluate(run: Run, folder: Path, grid: Grid | None = None) -> pd.Series[float]:
    evaluate_ood(run, grid or Grid(), "cpu", folder, lambda batches, total, what: batches)
    return run.read_table("ood").set_index(["perturbation", "gamma", "metric"])["value"]


# ---------------------------------------------------------------- training


@pytest.mark.parametrize(
    ("objective", "sampling"),
    [("constrained", ()), ("constrained", SAMPLED), ("erm", ()), ("supervised", SAMPLED)],
)
def test_every_objective_lowers_the_loss(folder, tmp_path, objective, sampling):
    fast = ("training.epochs=2", "training.learning_rate=0.03", "noise.gamma_train=0")
    finished = train(folder, tmp_path, *fast, *sampling, objective=objective)
    untrained = assemble(finished.recipe, folder, CPU)
    task = untrained.task
    (before,) = measure(
        untrained.layerwise, batches(task, task.examples("validation"), 8, CPU), None, [0.0]
    )
    info = finished.finished_info()
    assert info.layers == 3
    assert info.best.validation_loss < before.layer_losses[-1].item() - 0.5
    assert info.metric == MetricInfo(name="token_accuracy", higher_is_better=True, of_mean="mean")


def test_all_weights_learn_without_adapters(folder, tmp_path):
    settings = (
        "model.lora=null",
        "training.epochs=3",
        "training.learning_rate=3e-2",
        "noise.gamma_train=0",
    )
    finished = train(folder, tmp_path, *settings, objective="erm")
    assert (
        finished.finished_info().best.validation_loss
        < assemble(finished.recipe, folder, CPU).task.reference_loss()
    )
    sigma = finished.finished_info().sigma_x
    assert sigma.training != sigma.evaluation


def test_adapters_leave_the_embeddings_and_their_deviation_alone(trained):
    sigma = trained.finished_info().sigma_x
    assert sigma.training == sigma.evaluation


def test_the_best_weights_of_a_run_with_adapters_are_the_adapters(trained, folder):
    weights = load_file(trained.weights_file("best"))
    assert all("lora_" in name for name in weights)
    assert sum(weight.numel() for weight in weights.values()) == ADAPTERS
    # Four bytes each, and names.
    assert trained.weights_file("best").stat().st_size < 4 * ADAPTERS + 200 * len(weights)
    assert trained.info().parameters == ADAPTERS + sum(
        weight.numel() for weight in load_file(folder / "llama" / "model.safetensors").values()
    )


@pytest.fixture(scope="module")
def cut(folder, tmp_path_factory) -> dict[str, int]:
    """What run.json notes where half of the prompts are too long."""
    with pytest.warns(DataWarning, match="prompts cut"):
        finished = train(
            folder, tmp_path_factory.mktemp("cut"), "training.epochs=1", "task.max_length=170"
        )
    return finished.info().data_notes


def test_what_was_cut_in_training_data_is_in_the_run(cut):
    assert cut["train: prompts cut"] > 0


def test_checkpointing_trains_alike(folder, tmp_path):
    plain, other = (
        train(folder, tmp_path, *FEW, f"model.gradient_checkpointing={on}")
        for on in ("false", "true")
    )
    expected, found = (run.read_table("history")["value"].tolist() for run in (plain, other))
    assert found == pytest.approx(expected, abs=1e-4)


# ---------------------------------------------------------------- some tokens


def test_an_update_reads_some_tokens_of_every_layer_but_the_last(folder, tmp_path, monkeypatch):
    read: list[list[int]] = []
    forward = LayerwiseLosses.forward

    def record(self, batch, noise, layers, thinned, *rest):
        counted = [(labels["labels"] != IGNORED).sum(1) for labels in (thinned, batch)]
        read.extend(torch.stack(counted, 1).tolist())
        return forward(self, batch, noise, layers, thinned, *rest)

    monkeypatch.setattr(LayerwiseLosses, "forward", record)
    train(folder, tmp_path, *FEW, "readout.tokens=3")
    assert len(read) == 2 * 8
    assert all(few == 3 < whole for few, whole in read)


# ---------------------------------------------------------------- going on, and splitting


@pytest.mark.parametrize(
    "settings", [("model.lora={rank: 2, dropout: 0.2}", *SAMPLED), ("model.lora=null", *SAMPLED)]
)
def test_an_interrupted_run_resumes_bit_for_bit_with_adapters_and_sampling(
    folder, tmp_path, monkeypatch, settings
):
    settings = (*FEW, "training.batch_size=2", *settings)
    whole = train(folder, tmp_path / "whole", *settings)
    log = Trainer._log_update

    def log_and_interrupt(self, *arguments):
        log(self, *arguments)
        if self.state.step in (2, 7):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "_log_update", log_and_interrupt)
    for _ in range(2):
        with pytest.raises(TrainingInterruptedError):
            train(folder, tmp_path / "parts", *settings)
    parts = train(folder, tmp_path / "parts", *settings)
    for name in ("history.csv", "layers.csv", "checkpoints/best.safetensors"):
        assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes()


@pytest.mark.parametrize(
    "settings", [(), ("descent.form=log",), SAMPLED, ("model.lora=null",)], ids=str
)
def test_micro_batches_take_the_same_step(folder, tmp_path, settings):
    one, four = (
        train(folder, tmp_path / str(n), *FEW, f"training.accumulation={n}", *settings)
        for n in (1, 4)
    )
    histories = [run.read_table("history") for run in (one, four)]
    assert histories[1]["value"].tolist() == pytest.approx(histories[0]["value"].tolist(), abs=1e-4)


# ---------------------------------------------------------------- evaluation


def test_the_table_has_token_accuracy_and_loss_as_the_examples_have_them(run, folder):
    values = evaluate(run, folder)
    assert set(values.index.get_level_values("metric")) == {
        f"{name}{end}" for name in ("token_accuracy", "loss") for end in ("", "_low", "_high")
    }
    problem = problem_of(run, folder)
    task = problem.task
    noise = NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, 0)
    examples = batches(task, task.examples("test"), 64, CPU)
    for gamma, level in zip(
        [0.0, 0.5], measure(problem.layerwise, examples, noise, [0.0, 0.5]), strict=True
    ):
        # Examples count by their tokens: the mean is over all of them.
        assert values["gaussian", gamma, "loss"] == pytest.approx(
            level.layer_losses[-1].item(), abs=1e-5
        )
        assert values["gaussian", gamma, "token_accuracy"] == pytest.approx(
            level.layer_scores[-1].item(), abs=1e-5
        )
        low, value, high = (
            values["gaussian", gamma, f"loss{end}"] for end in ("_low", "", "_high")
        )
        assert low < value < high


def test_other_pretrained_weights_than_a_run_began_with_are_refused(run, folder):
    weights = folder / "llama" / "model.safetensors"
    before = weights.read_bytes()
    try:
        save_file(
            {name: value + 1 for name, value in load_file(weights).items()},
            weights,
            {"format": "pt"},
        )
        with pytest.raises(
            UserError, match="was started with other pretrained weights of the same name"
        ):
            evaluate(run, folder)
    finally:
        weights.write_bytes(before)
