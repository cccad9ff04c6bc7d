"""Training in several processes: the steps of one, the same multipliers in all."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from cudt.config.recipe import NamedRecipe
from cudt.runs.run import Run, run_for
from cudt.training import launch
from cudt.training.view import TrainingView
from cudt.utils.errors import TrainingInterruptedError
from tests.cases import Case, write_data
from tests.checkpoints import newest
from tests.conftest import tiny_recipe
from tests.processes import together


class Recorder:
    """Keeps λ and the losses after each update."""

    def __init__(self, stop_at: int = -1) -> None:
        self.seen: list[tuple[list[float] | None, list[float]]] = []
        self._stop_at = stop_at

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, view: TrainingView) -> None:
        self.seen.append((view.multipliers, list(view.train_losses.values())))
        if view.step == self._stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def epoch_ended(self, view: TrainingView, metric: str) -> None:
        pass


@pytest.fixture(autouse=True)
def no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process draws dropout for its own examples, so that only training without it has one
    process's numbers."""
    attention = torch.nn.functional.scaled_dot_product_attention

    def without(*inputs: Any, dropout_p: float = 0.0, **options: Any) -> torch.Tensor:
        return attention(*inputs, **options)

    monkeypatch.setattr(torch.nn.functional, "dropout", lambda values, *settings, **options: values)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", without)


def train(
    recipe: NamedRecipe, out: Path, root: Path | None = None
) -> list[tuple[list[float] | None, list[float]]]:
    recorder = Recorder()
    launch.train(recipe, out, "cpu", root, recorder)
    return recorder.seen


def train_until(recipe: NamedRecipe, out: Path, stop_at: int) -> None:
    with pytest.raises(TrainingInterruptedError):
        launch.train(recipe, out, "cpu", None, Recorder(stop_at))


def assert_same_training(one: Run, other: Run) -> None:
    """The same rows of history.csv and layers.csv, and the same weights, to 1e-5."""
    for name in ("history", "layers"):
        pd.testing.assert_frame_equal(
            one.read_table(name), other.read_table(name), rtol=1e-5, atol=1e-5
        )
    for which in ("best", "last"):
        weights, others = (load_file(run.weights_file(which)) for run in (one, other))
        assert weights.keys() == others.keys()
        for key in weights:
            assert torch.allclose(weights[key], others[key], rtol=1e-4, atol=1e-4), key
    infos = [run.finished_info() for run in (one, other)]
    assert infos[0].best.epoch == infos[1].best.epoch
    assert infos[0].sigma_x.training == infos[1].sigma_x.training


def assert_as_one(
    recipe: NamedRecipe, out: Path, counts: tuple[int, ...], root: Path | None = None
) -> None:
    """Several processes have the same λ bit by bit after each update, and one process's losses."""
    together(1, lambda: train(recipe, out / "1", root))
    for count in counts:
        folder = out / str(count)
        first, *others = together(count, partial(train, recipe, folder, root))
        assert len(first) > 1
        assert all(other == first for other in others)
        assert run_for(recipe, folder).info().processes == count
        assert_same_training(run_for(recipe, out / "1"), run_for(recipe, folder))


# 32 examples do not divide by 3, and 31 examples in 2 micro-batches do not divide by anything.
SETTINGS = {
    "linear": ("descent.alpha=0.5",),
    "uneven": ("training.batch_size=31", "training.accumulation=2", "noise.gamma_train=0.5"),
    "log slack": (
        "descent.form=log",
        "descent.resilience=slack",
        "descent.beta=1.0",
        "training.accumulation=3",
    ),
    "warm-up": (
        "descent.warmup_epochs=1",
        "descent.resilience=decay",
        "descent.beta=2.0",
        "descent.dual.optimizer=nupi",
    ),
    "proxy": ("descent.gradient=proxy", "training.clip_norm=0.1", "training.weight_decay=0.1"),
    "supervised": ("objective=supervised", "training.group_by_length=true"),
    "erm": ("objective=erm", "training.batch_size=7", "training.warmup_share=0.5"),
}


def some_slow(fast: set[Any], values: Iterable[Any]) -> list[Any]:
    """The values as parameters of a test; those that are not `fast` are left to the slow tests."""
    return [
        pytest.param(one, id=str(one), marks=() if one in fast else pytest.mark.slow)
        for one in values
    ]


@pytest.mark.parametrize("name", some_slow({"uneven", "log slack"}, SETTINGS))
def test_two_and_three_processes_train_as_one_and_hold_the_same_multipliers(name, tmp_path):
    assert_as_one(tiny_recipe(*SETTINGS[name]), tmp_path, (2, 3))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


MODELS = [
    Case("bert", "imdb", "linear slack"),
    Case("distilbert", "mnli", "supervised"),
    Case("modernbert", "text", "erm"),
    Case("roberta", "imdb", "linear decay"),
    Case("unrolled", "imdb", "log decay"),
    Case("llama lora", "alpaca", "log slack", (("readout.tokens", 3),)),
    Case("llama", "alpaca", "linear decay", (("training.accumulation", 2),)),
    Case("vit", "shapes", "linear decay"),
    Case("dust", "folder", "log slack"),
    Case("unrolled_video", "shapes", "linear slack"),
]


@pytest.mark.parametrize(
    "case", some_slow({one for one in MODELS if one.model in ("bert", "llama lora")}, MODELS)
)
def test_so_does_every_model(case, root, tmp_path):
    assert_as_one(case.recipe(root), tmp_path, (2,), root)


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize("counts", some_slow({(1, 3)}, [(2, 1), (1, 3), (3, 2)]))
def test_a_run_resumes_on_another_number_of_processes(counts, tmp_path):
    before, after = counts
    recipe = tiny_recipe(
        "descent.alpha=0.5",
        "training.batch_size=31",
        "descent.resilience=slack",
        "descent.beta=1.0",
    )
    together(1, lambda: train(recipe, tmp_path / "whole"))
    together(before, lambda: train_until(recipe, tmp_path / "stopped", 4))
    stopped = run_for(recipe, tmp_path / "stopped")
    assert stopped.info().status == "interrupted"
    assert newest(stopped).progress.step in (4, 5)
    together(after, lambda: train(recipe, tmp_path / "stopped"))
    assert_same_training(run_for(recipe, tmp_path / "whole"), stopped)


def test_every_process_draws_its_own_dropout_and_goes_on_with_it_after_a_resume(
    tmp_path, monkeypatch
):
    def draws(stop_at: int) -> list[float]:
        drawn: list[float] = []

        class Drawing(Recorder):
            def update(self, view: TrainingView) -> None:
                drawn.append(torch.rand(()).item())
                super().update(view)

        with contextlib.suppress(TrainingInterruptedError):
            launch.train(tiny_recipe(), tmp_path / out, "cpu", None, Drawing(stop_at))
        return drawn

    out = "whole"
    first, second = together(2, lambda: draws(-1))
    assert len(first) == 6
    assert set(first).isdisjoint(second)
    out = "alone"
    assert together(1, lambda: draws(-1)) == [first]
    out = "stopped"
    begun = together(2, lambda: draws(2))
    resumed = together(2, lambda: draws(-1))
    assert [one + rest for one, rest in zip(begun, resumed, strict=True)] == [first, second]
    # A third process has none to go on with, and seeds its own.
    out = "more"
    together(2, lambda: draws(2))
    *known, new = together(3, lambda: draws(-1))
    assert known == [one[len(begun[0]) :] for one in (first, second)]
    assert len(new) == len(known[0])
    assert set(new).isdisjoint(first + second)
