"""What a run says when an update is not finite: advice that fits the cause."""

from __future__ import annotations

import math

import pytest
import torch

from cudt.training.non_finite import refuse_non_finite
from cudt.utils.errors import TrainingStoppedError
from tests.training.test_trainer import trainer_for

FINE = torch.tensor([0.7, 0.6, 0.5])
NAN = torch.tensor(math.nan)


def advice(trainer, f=FINE, grad_norm=NAN, **batch: torch.Tensor) -> str:
    batches = [{"ids": ["a", "b"], "tokens": torch.ones(2, 3), **batch}]
    with pytest.raises(TrainingStoppedError) as raised:
        refuse_non_finite(
            7, f, grad_norm, trainer.objective, trainer.model, batches, trainer.settings
        )
    what, _, rest = str(raised.value).partition("; this update was not applied. ")
    assert what.startswith("update 7: ")
    return rest


@pytest.mark.parametrize("grad_norm", [0.0, 1.0, 3e38, math.inf, math.nan])
def test_only_numbers_that_are_finite_pass(grad_norm, tmp_path):
    trainer, refused = trainer_for(tmp_path), False
    try:
        refuse_non_finite(
            7, FINE, torch.tensor(grad_norm), trainer.objective, trainer.model, [], trainer.settings
        )
    except TrainingStoppedError:
        refused = True
    assert refused != math.isfinite(grad_norm)


def test_each_cause_has_its_advice(tmp_path):
    trainer = trainer_for(tmp_path)
    rate = trainer.settings.training.learning_rate
    assert advice(trainer) == f"Lower training.learning_rate (now {rate:g})"
    bad = torch.tensor([[1.0, math.inf], [0.0, 1.0]])
    assert (
        advice(trainer, pixels=bad)
        == "The data of this batch are not finite (example a): check the data files"
    )
    trainer.descent.multiplier_values[1] = 4e5
    assert advice(trainer).startswith(
        "The multipliers have grown to 4e+05: lower descent.dual.learning_rate or"
    )
    trainer.descent.multiplier_values[1] = 0.0
    next(trainer.model.parameters()).data[0] = math.nan
    line = f"The weights are not finite since the update before: lower training.learning_rate (now {rate:g})"
    assert advice(trainer, f=torch.tensor([math.nan, 1.0, 1.0])) == line


def test_the_log_form_needs_losses_above_zero(tmp_path):
    trainer = trainer_for(tmp_path, "descent.form=log")
    line = "The log form needs losses above 0, and that of layer 2 is 0: set descent.form=linear"
    assert advice(trainer, f=torch.tensor([0.7, 0.0, 0.5])) == line


def test_without_clipping_and_in_bf16_these_are_named(tmp_path):
    trainer = trainer_for(
        tmp_path, "training.clip_norm=null", "training.precision=bf16", objective="erm"
    )
    told = advice(trainer, f=torch.tensor([math.inf]))
    assert told.endswith(", or set training.clip_norm, or set training.precision=fp32")
