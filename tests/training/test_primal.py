from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from cudt.config import recipe as recipes
from cudt.config.schema import Training
from cudt.models.assemble import assemble
from cudt.training import primal
from cudt.training.primal import Primal, learning_rate_shares
from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.errors import UserError
from tests.training.test_trainer import CPU, head_of, trainer_for


def without_fusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primal, "_can_fuse", lambda device: False)


def losses(folder: Path, updates: int, *overrides: str) -> torch.Tensor:
    """f of every layer in each update, (updates, layers)."""
    trainer = trainer_for(folder, "training.epochs=200", *overrides)
    rows: list[torch.Tensor] = []
    while len(rows) < updates:
        for indices in itertools.islice(trainer._remaining_updates(), updates - len(rows)):
            rows.append(trainer._update(indices)[0])
            trainer.state.step += 1
        trainer.state.epoch += 1
    return torch.stack(rows)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_the_fused_optimiser_has_the_losses_of_the_plain_one_over_200_updates(
    tmp_path, monkeypatch, optimizer
):
    # Small steps: UT has kinks (ReLU), behind which differences in the last bit grow, whatever they
    # come from.
    steps = ("training.learning_rate=3e-4", "noise.gamma_train=0.0")
    settings = (f"training.optimizer={optimizer}", "training.weight_decay=0.01", *steps)
    fused = losses(tmp_path, 200, *settings)
    without_fusing(monkeypatch)
    plain = losses(tmp_path, 200, *settings)
    assert (fused - plain).abs().max() <= 1e-6
    assert plain[-1, -1] < 0.95 * plain[0, -1]


# ---------------------------------------------------------------- learning rates


def shares(per_epoch: int, **settings: object) -> list[float]:
    training = Training.model_validate({"epochs": 2, **settings})
    return [learning_rate_shares(training, per_epoch)(update) for update in range(2 * per_epoch)]


def rates_of_transformers(schedule: str, warmup: int, updates: int) -> list[float]:
    survive_torchvision_mismatch()
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = get_scheduler(
        schedule, optimizer, num_warmup_steps=warmup, num_training_steps=updates
    )
    rates = []
    for _ in range(updates):
        rates += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_without_warm_up_is_that_of_transformers(schedule):
    assert shares(5, schedule=schedule) == rates_of_transformers(schedule, 0, 10)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_with_warm_up_is_that_of_transformers_without_its_first_rate_of_0(schedule):
    expected = rates_of_transformers(schedule, 4, 11)
    assert expected[0] == 0
    assert shares(5, schedule=schedule, warmup_share=0.4) == expected[1:]


def test_rates_computed_by_hand():
    assert shares(2, schedule="linear") == pytest.approx([1, 0.75, 0.5, 0.25])
    assert shares(2, schedule="linear", warmup_share=0.5) == pytest.approx([1 / 2, 1, 2 / 3, 1 / 3])
    assert shares(2, schedule="cosine") == pytest.approx([1, 0.85355339, 0.5, 0.14644661])
    assert shares(2, warmup_share=0.5) == [0.5, 1, 1, 1]
    assert shares(2) == [1, 1, 1, 1]


def test_the_readout_steps_with_its_own_learning_rate(tmp_path):
    trainer = trainer_for(
        tmp_path,
        "training.learning_rate=1e-3",
        "training.readout_learning_rate=1e-2",
        "training.clip_norm=null",
    )
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer._update(next(trainer._remaining_updates()))
    moved = {
        name: (weight - before[name]).abs().max()
        for name, weight in trainer.model.named_parameters()
    }
    # The first step of Adam is as long as its learning rate.
    for name, step in moved.items():
        assert step.item() == pytest.approx(1e-2 if name.startswith("head.") else 1e-3, rel=1e-2), (
            name
        )
    assert [
        head_of(trainer).weight,
        head_of(trainer).bias,
    ] == trainer.primal.optimizer.param_groups[1]["params"]


def test_a_readout_without_weights_of_its_own_has_no_learning_rate():
    recipe = recipes.load("shapes-dust", ["training.readout_learning_rate=1e-2"])
    model = assemble(recipe, None, CPU).layerwise.model
    with pytest.raises(
        UserError, match="readout_learning_rate: the readout of this model has no weights"
    ):
        Primal(model, [], recipe.settings.training, 1)
