"""N micro-batches take the step of one batch, in weights, multipliers and slacks."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from cudt.config import recipe as recipes
from cudt.runs.run import run_for
from cudt.training import train as training
from cudt.training.trainer import Trainer
from cudt.utils.device import accelerator_for
from tests.conftest import quiet
from tests.parts.test_trainer import step_plainly, trainer_for, weights_of
from tests.pretrained import tiny_llama
from tests.texts import write_instructions, write_recipe

SETTINGS = {
    "linear": (),
    "log": ("descent.form=log",),
    "slack": ("descent.resilience=slack", "descent.beta=1.0"),
    "log decay": ("descent.resilience=decay", "descent.beta=1.0", "descent.form=log"),
    "proxy": ("descent.gradient=proxy",),
    "ladder": ("descent.form=ladder",),
    "erm": ("descent.form=log",),
    "supervised": ("descent.form=log",),
}


def after_some_updates(
    out: Path, accumulation: int, objective: str, *settings: str
) -> dict[str, torch.Tensor]:
    parts = (f"training.accumulation={accumulation}", "training.clip_norm=null")
    trainer = trainer_for(out, *parts, *settings, objective=objective)
    # Plain gradients: Adam would blow rounding up where a gradient is nearly zero.
    step_plainly(trainer, 0.1)
    trainer.descent.multiplier_values.add_(torch.tensor([0.5, 1.0, 1.5]))
    for epoch in (0, 1):
        trainer.progress.epoch = epoch
        for micro_batches in trainer._remaining_updates():
            assert len(micro_batches) == accumulation
            trainer._update(micro_batches)
    norms = [value for _, _, _, _, name, value in trainer.rows if name in ("loss", "gradient_norm")]
    descent = trainer.descent
    dual = {"λ": descent.multiplier_values.clone(), "u": descent.slack, "rows": torch.tensor(norms)}
    return {**weights_of(trainer), **dual}


@pytest.mark.parametrize("name", SETTINGS)
def test_micro_batches_take_the_step_of_one_batch(tmp_path, name):
    objective = name if name in ("erm", "supervised") else "constrained"
    # 32 examples do not divide by 5.
    whole, *splits = (
        after_some_updates(tmp_path, parts, objective, *SETTINGS[name]) for parts in (1, 2, 5)
    )
    for split, (key, value) in itertools.product(splits, whole.items()):
        assert torch.allclose(value, split[key], atol=1e-5), key


def test_tokens_count_alike_in_micro_batches_of_different_lengths(tmp_path):
    """A batch of Alpaca weighs examples by their answer tokens, not by micro-batch."""
    write_instructions(tmp_path)
    path = write_recipe(tmp_path, tiny_llama(tmp_path / "llama"))

    def gradient(parts: int) -> torch.Tensor:
        settings = (f"training.accumulation={parts}", "training.clip_norm=null")
        loaded = recipes.load(str(path), settings, objective="constrained")
        objects = training.assemble(loaded, tmp_path, torch.device("cpu"))
        run, accelerator = run_for(loaded, tmp_path), accelerator_for("cpu", "fp32")
        trainer = Trainer(run, *objects, accelerator, quiet())
        trainer._begin()
        trainer._back_propagate(next(trainer._remaining_updates()))
        found = [one.grad.flatten() for one in trainer.model.parameters() if one.grad is not None]
        return torch.cat(found)

    whole, split = gradient(1), gradient(3)
    assert whole.abs().max() > 0
    assert torch.allclose(whole, split, atol=1e-5)
