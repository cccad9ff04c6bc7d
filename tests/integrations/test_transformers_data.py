"""DescentTrainer with data sets of every kind, and at the ends of epochs and trainings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset
from transformers import EarlyStoppingCallback

from cudt.integrations.transformers import Descent
from cudt.utils.errors import UserError
from tests.integrations.trainers import SETTINGS, Rows, by_layer, examples, trainer_of, weights_of

SLACK = Descent(alpha=0.3, resilience="slack", beta=0.1)


class Stream(IterableDataset[Any]):
    """Rows without a length."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __iter__(self) -> Any:
        return iter([self._rows[index] for index in range(len(self._rows))])


def test_a_stream_of_validation_data_is_judged(tmp_path):
    data = examples("sequence", 12, seed=1)
    streamed, listed = (trainer_of(tmp_path, eval_dataset=one) for one in (Stream(data), data))
    for trainer in (streamed, listed):
        trainer.train()
    assert streamed.verdicts == listed.verdicts


def test_a_stream_of_training_data_ends_and_begins_again(tmp_path):
    settings = SETTINGS.model_copy(update={"reference": 1.1})
    trainer = trainer_of(
        tmp_path,
        train_dataset=Stream(examples("sequence")),
        descent=settings,
        args={"max_steps": 6},
    )
    trainer.train()
    assert by_layer(trainer, "loss").shape == (6, 3)


def test_a_stream_whose_reference_is_not_known_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"descent\.reference"):
        trainer_of(tmp_path, train_dataset=Stream(examples("sequence"))).train()


def test_training_labels_that_are_all_the_same_need_a_reference(tmp_path):
    rows = [{**examples("sequence")[index], "labels": 1} for index in range(16)]
    with pytest.raises(UserError, match=r"descent\.reference: 'auto' .* all the same") as raised:
        trainer_of(tmp_path, train_dataset=Rows(rows)).train()
    assert "\n" not in str(raised.value)


def test_several_validation_sets_are_judged_one_by_one(tmp_path):
    data = {"one": examples("sequence", 12, seed=1), "two": examples("sequence", 12, seed=2)}
    trainer = trainer_of(tmp_path, eval_dataset=data)
    with pytest.raises(UserError, match=r"train\(\)"):
        trainer.judge(data["one"])
    trainer.train()
    assert trainer.verdicts == []
    with pytest.raises(UserError, match="give judge one data set"):
        trainer.judge()
    assert len(trainer.judge(data["two"])) == 3


def test_a_training_resumed_after_an_epoch_has_the_slack_of_a_new_one(tmp_path):
    def trainer(name: str) -> Any:
        args = {"max_steps": 6, "save_strategy": "steps", "save_steps": 4}
        return trainer_of(tmp_path / name, descent=SLACK, args=args)

    whole, resumed = trainer("whole"), trainer("resumed")
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert by_layer(whole, "slack")[3].max() > 0
    assert torch.equal(by_layer(whole, "slack"), by_layer(resumed, "slack"))
    assert torch.equal(weights_of(whole), weights_of(resumed))


def test_a_training_that_stops_early_is_judged_with_its_slack(tmp_path):
    trainer = trainer_of(
        tmp_path,
        descent=SLACK,
        eval_dataset=examples("sequence", 12, seed=1),
        callbacks=[EarlyStoppingCallback(1, early_stopping_threshold=100.0)],
        args={
            "max_steps": 20,
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
            "metric_for_best_model": "loss",
            "greater_is_better": True,
            "load_best_model_at_end": True,
        },
    )
    trainer.train()
    assert trainer.state.global_step == 8
    assert trainer.problem is not None
    # The "best" epoch, of the larger loss, is the first one: the weights, λ and u are those at its
    # end.
    assert trainer.state.best_global_step == 4
    assert torch.equal(trainer.problem.descent.slack, by_layer(trainer, "slack")[3])
    assert [one.slack for one in trainer.verdicts] == by_layer(trainer, "slack")[3].tolist()


def test_a_scheduler_that_does_not_know_the_slack_is_refused_in_one_line(tmp_path):
    trainer = trainer_of(tmp_path, descent=SLACK)
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.raises(UserError, match="cannot schedule it") as raised:
        trainer_of(
            tmp_path, own=trainer.model, descent=SLACK, optimizers=(optimizer, schedule)
        ).train()
    assert "\n" not in str(raised.value)
