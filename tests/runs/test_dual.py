from __future__ import annotations

import pytest
import torch

from cudt.runs.dual import dual_at_end
from cudt.training.trainer import Trainer
from tests.conftest import tiny_recipe, train_quietly


@pytest.mark.parametrize("select", ["best", "last"])
@pytest.mark.parametrize("settings", [["descent.form=log"], ["descent.gradient=proxy"], []])
def test_lambda_and_w_are_those_of_the_epochs_end_however_rarely_updates_are_logged(
    select, settings, tmp_path, monkeypatch
):
    ends: list[tuple[list[float], list[float]]] = []
    end_epoch = Trainer._end_epoch

    def noted(trainer: Trainer) -> None:
        descent = trainer.descent
        ends.append((descent.multiplier_values.tolist(), descent.effective_weights().tolist()))
        end_epoch(trainer)

    monkeypatch.setattr(Trainer, "_end_epoch", noted)
    rarely = (
        "training.log_every=1000",
        "descent.dual.learning_rate=0.5",
        f"training.select={select}",
    )
    run = train_quietly(tiny_recipe(*rarely, *settings), tmp_path)
    for found, epoch in (
        (dual_at_end(run), run.finished_info().best.epoch),
        (dual_at_end(run, "last"), 2),
    ):
        assert found is not None
        multipliers, weights = ends[epoch - 1]
        assert any(multipliers)
        assert [*found.multipliers.items()] == [*enumerate(multipliers, 1)]
        assert [*found.weights] == [1, 2, 3]
        assert torch.allclose(
            torch.tensor([*found.weights.values()]), torch.tensor(weights), atol=1e-6
        )


def test_a_run_without_constraints_has_none(tmp_path):
    assert dual_at_end(train_quietly(tiny_recipe(objective="erm"), tmp_path)) is None
