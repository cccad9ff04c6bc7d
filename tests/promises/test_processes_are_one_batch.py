"""P processes take the step of one batch, and hold the same λ bit by bit; also if they share the
weights (FSDP2), and after a resume as another number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from accelerate.utils import patch_environment
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from cudt.config import recipe as recipes
from cudt.config.recipe import NamedRecipe
from cudt.runs.run import Run, run_for
from cudt.training import train as training
from cudt.training.trainer import Trainer
from cudt.utils.errors import TrainingInterruptedError
from tests.cases import recipe_of, write_data
from tests.conftest import Stopping, tiny_recipe
from tests.pretrained import tiny_llama
from tests.processes import together
from tests.texts import write_instructions, write_recipe

#: What `accelerate launch` sets for recipes/accelerate/fsdp-1x8.yaml.
SHARED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}


@pytest.fixture(autouse=True)
def no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process draws dropout for its own examples, so that only training without it has one
    process's numbers.
    """
    attention = torch.nn.functional.scaled_dot_product_attention

    def without(*inputs: Any, dropout_p: float = 0.0, **options: Any) -> torch.Tensor:
        return attention(*inputs, **options)

    monkeypatch.setattr(torch.nn.functional, "dropout", lambda values, *settings, **options: values)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", without)


def train(recipe: NamedRecipe, out: Path, root: Path | None = None, stop: int = -1) -> list[Any]:
    """λ after each update and the losses, in this process."""
    seen: list[Any] = []
    log = Trainer._log_update

    def watched(trainer: Trainer, f: torch.Tensor, norm: torch.Tensor) -> None:
        seen.append([trainer.descent.multiplier_values.tolist(), f.tolist()])
        log(trainer, f, norm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_log_update", watched)
        try:
            training.train(recipe, out, "cpu", root, Stopping(stop))
        except TrainingInterruptedError:
            assert stop > 0
    return seen


def assert_same(one: Run, other: Run, tolerance: float = 1e-5) -> None:
    """The same rows of history.csv and layers.csv, and the same weights."""
    for name in ("history", "layers"):
        tables = one.read_table(name), other.read_table(name)
        for table in tables if name == "layers" else ():
            # That of a difference of losses, which may be much smaller than they are.
            table["standard_error"] /= table["loss"]
        pd.testing.assert_frame_equal(*tables, rtol=tolerance, atol=tolerance)
    for which in ("best", "last"):
        weights, others = (load_file(run.weights_file(which)) for run in (one, other))
        assert weights.keys() == others.keys()
        for key, weight in weights.items():
            assert torch.allclose(weight, others[key], rtol=1e-4, atol=1e-4), key
    assert one.finished_info().best.epoch == other.finished_info().best.epoch


def assert_as_one(
    recipe: NamedRecipe, out: Path, counts: Sequence[int], root: Path | None = None
) -> None:
    together(1, partial(train, recipe, out / "1", root))
    for count in counts:
        first, *others = together(count, partial(train, recipe, out / str(count), root))
        assert len(first) > 1
        assert all(other == first for other in others)
        assert run_for(recipe, out / str(count)).info().processes == count
        assert_same(run_for(recipe, out / "1"), run_for(recipe, out / str(count)))


SLACK = ("descent.resilience=slack", "descent.beta=1.0")
DECAY = ("descent.resilience=decay", "descent.beta=1.0")
# 32 examples do not divide by 3, and 31 examples in 2 micro-batches do not divide by anything.
SETTINGS = {
    "uneven": ("training.batch_size=31", "training.accumulation=2", "noise.gamma_train=0.5"),
    "log slack": ("descent.form=log", *SLACK, "training.accumulation=3"),
    "warm-up": (
        *("descent.warmup_epochs=1", *DECAY),
        *("descent.dual.optimizer=nupi", "training.clip_norm=0.1"),
    ),
    "erm": ("objective=erm", "training.batch_size=7", "training.group_by_length=true"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_two_and_three_processes_train_as_one_and_hold_the_same_multipliers(name, tmp_path):
    assert_as_one(tiny_recipe(*SETTINGS[name]), tmp_path, (2, 3))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


#: Settings by the model.
MODELS = {
    "bert": SLACK,
    "unrolled": ("descent.form=log", *DECAY),
    "llama lora": ("descent.form=log", *SLACK, "readout.tokens=3"),
    "llama": (*DECAY, "training.accumulation=2"),
    "vit": DECAY,
    "dust": ("descent.form=log", *SLACK),
    "unrolled_video": SLACK,
}


@pytest.mark.parametrize(
    "model",
    [pytest.param(one, marks=() if one == "llama lora" else pytest.mark.slow) for one in MODELS],
)
def test_so_does_every_model(model, root, tmp_path):
    assert_as_one(recipe_of(model, root, *MODELS[model]), tmp_path, (2,), root)


@pytest.mark.parametrize("counts", [(2, 1), (1, 3)])
def test_a_run_resumes_on_another_number_of_processes(counts, tmp_path):
    recipe = tiny_recipe(*SLACK, "descent.alpha=0.5", "training.batch_size=31")
    before, after = counts
    together(1, partial(train, recipe, tmp_path / "whole"))
    together(before, partial(train, recipe, tmp_path / "stopped", stop=4))
    stopped = run_for(recipe, tmp_path / "stopped")
    assert stopped.info().status == "interrupted"
    together(after, partial(train, recipe, tmp_path / "stopped"))
    assert_same(run_for(recipe, tmp_path / "whole"), stopped)


# ---------------------------------------------------------------- shared weights


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_instructions(folder)
    write_recipe(folder, tiny_llama(folder / "llama", tie_word_embeddings=False))
    return folder


def llama_recipe(folder: Path, *settings: str) -> NamedRecipe:
    few = ("task.limit={train: 8, validation: 6}", "evaluation.batch_size=2", "model.lora=null")
    file = str(folder / "tiny-alpaca.yaml")
    return recipes.load(file, (*few, *settings), objective="constrained")


def sharing(count: int, work: Any) -> list[Any]:
    with patch_environment(**SHARED):
        return together(count, work)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        (*SLACK, "training.clip_norm=0.1"),
        ("descent.form=log", "training.accumulation=2", "training.batch_size=5"),
    ],
)
def test_two_processes_that_share_the_weights_train_as_one(llama, tmp_path, settings):
    recipe = llama_recipe(llama, *settings)
    together(1, partial(train, recipe, tmp_path / "alone", llama))
    first, second = sharing(2, partial(train, recipe, tmp_path / "shared", llama))
    assert first == second
    alone, shared = (run_for(recipe, tmp_path / name) for name in ("alone", "shared"))
    assert_same(alone, shared, tolerance=1e-4)
    assert (alone.info().sharded, shared.info().sharded) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"), [("shared", "alone"), ("shared", "shared"), ("alone", "shared")]
)
def test_shards_resume_on_another_number_of_processes(llama, tmp_path, before, after):
    recipe = llama_recipe(llama, *SLACK, "training.clip_norm=0.1")
    together(1, partial(train, recipe, tmp_path / "whole", llama))
    for kind, stop in ((before, 3), (after, -1)):
        work = partial(train, recipe, tmp_path / "stopped", llama, stop)
        sharing(2, work) if kind == "shared" else together(1, work)
    whole, stopped = (run_for(recipe, tmp_path / name) for name in ("whole", "stopped"))
    assert_same(whole, stopped, tolerance=1e-4)


@pytest.mark.slow
def test_each_process_holds_half_of_the_weights_and_the_moments(llama, tmp_path):
    recipe = llama_recipe(llama, "training.epochs=1")

    def held() -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        end = Trainer._end_epoch

        def watched(trainer: Trainer) -> None:
            moments = [v for state in trainer.optimizer.state.values() for v in state.values()]
            for tensors in (trainer.model.parameters(), [one for one in moments if one.dim()]):
                whole = [one for one in tensors if isinstance(one, DTensor)]
                here = sum(one.to_local().nbytes for one in whole)
                found.append((here, sum(one.numel() * one.element_size() for one in whole)))
            end(trainer)

        Trainer._end_epoch = watched  # type: ignore[method-assign,assignment]
        train(recipe, tmp_path, llama)
        return found

    for rank in sharing(2, held):
        for here, everywhere in rank:
            assert 0 < here == everywhere / 2
