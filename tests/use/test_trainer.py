"""DescentTrainer: against Trainer, against the plain loop, and its shares against one batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import Trainer

from cudt.config.schema import Dual
from cudt.integrations.trainer import Descent, Noise
from cudt.method import constraints
from cudt.method.descent import LayerwiseDescent
from cudt.models.own_head import layer_losses
from cudt.utils.errors import UserError
from tests.processes import together
from tests.use.trainers import (
    FAMILIES,
    SETTINGS,
    arguments,
    by_layer,
    collate,
    model_of,
    rows_of,
    trained,
    trainer_of,
    weights_of,
)

SLACK = Descent(alpha=0.3, resilience="slack", beta=0.1)
SGD = {"optim": "sgd", "max_grad_norm": 0.0}


def changed(**changes: Any) -> Descent:
    return SETTINGS.model_copy(update=changes)


def logged_losses(trainer: Any) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_erm_is_trainers_own_training_bit_for_bit(tmp_path):
    ours = trained(tmp_path, objective="erm")
    theirs = Trainer(model_of("bert"), arguments(tmp_path), collate, rows_of("bert"))
    theirs.train()
    assert torch.equal(weights_of(ours.model), weights_of(theirs.model))
    assert logged_losses(ours) == pytest.approx(logged_losses(theirs), rel=1e-6)


@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_an_update_is_one_of_the_plain_loop(family, form, tmp_path):
    dual = Dual(learning_rate=0.05)
    trainer = trainer_of(
        tmp_path, family, descent=changed(form=form, reference=1.2, dual=dual), args=SGD
    )
    model = copy.deepcopy(trainer.model)
    trainer.train()
    descent = LayerwiseDescent(3, 0.1, 1.2, form=form, resilience="decay", beta=5.0, dual=dual)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(4):
        f = layer_losses(model, collate(rows_of(family)[8 * step : 8 * step + 8]))
        assert torch.allclose(by_layer(trainer, "loss")[step], f, atol=1e-5)
        optimizer.zero_grad()
        descent.lagrangian(f).backward()
        descent.dual_step(f)
        optimizer.step()
    assert torch.allclose(by_layer(trainer, "multiplier")[-1], descent.multiplier_values, atol=1e-5)
    assert descent.multiplier_values.max() > 0
    assert torch.allclose(weights_of(trainer.model), weights_of(model), atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "bert-tokens", "llama"])
def test_accumulation_is_the_step_of_one_batch(family, tmp_path):
    """Also where micro-batches have different numbers of labels, or none."""
    rows = rows_of(family)
    for row in rows[2:4]:
        row["labels"] = torch.full_like(torch.as_tensor(row["labels"]), -100)
    found = []
    for size, steps in ((8, 1), (2, 4)):
        split = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, **SGD}
        noise = Noise(gamma_train=0.3)
        one = trained(tmp_path, family, train_dataset=rows, noise=noise, args=split)
        found.append([by_layer(one, "loss"), by_layer(one, "multiplier"), weights_of(one.model)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert found[0][1].max() > 0


@pytest.mark.parametrize("form", ["linear", "log"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_two_processes_are_one(family, form, tmp_path):
    def train(size: int) -> Any:
        args = {"per_device_train_batch_size": size, **SGD}
        data, noise = rows_of(family, 6, seed=1), Noise(gamma_train=0.3)
        one = trained(
            tmp_path, family, descent=changed(form=form), noise=noise, args=args, eval_dataset=data
        )
        verdicts = [each.verdict for each in one.verdicts]
        return one.args.world_size, by_layer(one, "multiplier"), weights_of(one.model), verdicts

    # In a process of its own, too: after a backward pass, this one could not be forked any more.
    ((size, *whole),) = together(1, lambda: train(8))
    first, second = together(2, lambda: train(4))
    assert (size, first[0], second[0]) == (1, 2, 2)
    for one, left, right in zip(whole[:2], first[1:3], second[1:3], strict=True):
        assert torch.allclose(one, left, atol=1e-5)
        assert torch.equal(left, right)
    assert whole[2] == first[3] == second[3]
    assert whole[0].max() > 0


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "bert"])
def test_the_layers_of_a_family_are_read_by_its_own_head_and_noise_enters(family, tmp_path):
    clean, noisy = (
        trained(tmp_path, family, noise=Noise(gamma_train=gamma), args={"max_steps": 1})
        for gamma in (0.0, 0.5)
    )
    expected = layer_losses(model_of(family).train(), collate(rows_of(family)[:8]))
    assert torch.allclose(by_layer(clean, "loss")[0], expected, atol=1e-5)
    # In chunks of tokens, if the head is one matrix.
    assert (clean._reader.words is not None) == (family in ("llama", "gpt2"))
    assert ((by_layer(clean, "loss") - by_layer(noisy, "loss")).abs() > 1e-5).all()


def test_checkpointing_of_gradients_and_bf16_change_nothing_but_rounding(tmp_path):
    plain, checkpointed, rounded = (
        by_layer(trained(tmp_path, "llama", args={**options, **SGD}), "loss")
        for options in ({}, {"gradient_checkpointing": True}, {"bf16": True})
    )
    assert torch.allclose(plain, checkpointed, atol=1e-5)
    assert torch.allclose(plain, rounded, rtol=0.05)
    assert not torch.equal(plain, rounded)


def test_the_noise_of_an_example_depends_on_its_content_and_the_seed_alone(tmp_path):
    trainer = trainer_of(tmp_path, noise=Noise(gamma_train=0.5), args={"max_steps": 1})
    table = trainer.model.get_input_embeddings()
    looked_up = torch.cat([table(row["input_ids"]) for row in rows_of("bert")]).double()
    trainer.train()
    assert trainer.noise.sigma_x == pytest.approx(looked_up.std(correction=0).item(), rel=1e-6)

    def noise(rows: Any, seed: str) -> list[torch.Tensor]:
        batch = collate(rows)
        clean = table(batch["input_ids"])
        with trainer.noise.on(trainer.model, batch, seed):
            drawn = table(batch["input_ids"]) - clean
        return [one[: len(row["input_ids"])] for one, row in zip(drawn, rows, strict=True)]

    rows = rows_of("bert")[:4]
    one, other = noise(rows, "a"), noise(rows[::-1], "a")[::-1]
    assert torch.allclose(torch.cat(one), torch.cat(other), atol=1e-6)
    assert not torch.allclose(one[0], noise(rows, "b")[0])


@pytest.mark.parametrize("at", [2, 5], ids=["within an epoch", "after one"])
@pytest.mark.parametrize("settings", [SETTINGS, SLACK], ids=["decay", "slack"])
def test_a_resumed_training_is_the_uninterrupted_one(settings, at, tmp_path):
    args = {"max_steps": 8, "save_strategy": "steps", "save_steps": at, "seed": 3}
    args |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    args |= {"train_sampling_strategy": "random"}

    def trainer(name: str) -> Any:
        model = model_of("bert", hidden_dropout_prob=0.1)
        noise = Noise(gamma_train=0.3)
        return trainer_of(tmp_path / name, model=model, descent=settings, noise=noise, args=args)

    whole, resumed = trainer("whole"), trainer("resumed")
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))
    assert torch.equal(whole.descent.multiplier_values, resumed.descent.multiplier_values)
    assert torch.equal(whole.descent.slack, resumed.descent.slack)
    assert whole.descent.multiplier_values.max() > 0


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_verdict_is_that_of_single_examples(family, tmp_path):
    rows = rows_of(family, 20, seed=1)
    trainer = trained(tmp_path, family, eval_dataset=rows)
    with torch.no_grad():
        losses = [layer_losses(trainer.model, collate([row])) for row in rows]
    shift = family == "llama"  # no token is predicted from nothing
    counts = [int((row["labels"][1:] != -100).sum()) if shift else 1 for row in rows]
    weights = torch.tensor(counts).double()
    descent = trainer.descent
    table, slack = torch.stack(losses, 1).double(), descent.slack.double()
    expected = constraints.judge(table, weights, descent.reference, descent.rates, slack)
    for found, its in zip(trainer.verdicts, expected, strict=True):
        assert found.verdict == its.verdict
        assert found.loss == pytest.approx(its.loss, abs=1e-5)
        assert found.standard_error == pytest.approx(its.standard_error, abs=1e-5)
    assert trainer.state.log_history[-1]["eval_loss/layer_02"] == trainer.verdicts[1].loss


def test_what_has_no_reference_or_no_loss_is_refused(tmp_path):
    rows = rows_of("bert")
    for labels, wrong in ((0.5, "'auto' is the entropy"), (1, "'auto' gives 0")):
        same = [{**row, "labels": labels} for row in rows]
        with pytest.raises(UserError, match=rf"descent\.reference: .*{wrong}"):
            trained(tmp_path, train_dataset=same)
    none = [{**row, "labels": -100} for row in rows]
    with pytest.raises(UserError, match="all labels of an update are -100"):
        trained(tmp_path, train_dataset=none, descent=changed(reference=1.1))
    split = {"gradient_accumulation_steps": 2}
    with pytest.raises(UserError, match=r"^gradient_accumulation_steps: the log form needs"):
        trained(tmp_path, descent=changed(form="log"), args=split)
