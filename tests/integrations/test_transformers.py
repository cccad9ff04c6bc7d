"""DescentTrainer against transformers' Trainer, and against what its update should do."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer

from cudt.config.schema import Dual
from cudt.integrations.transformers import Descent, DescentTrainer, Noise
from cudt.method import constraints
from cudt.method.descent import LayerwiseDescent
from cudt.models.layer_losses import Measurement
from cudt.models.own_head import layer_losses
from cudt.utils.errors import UserError
from tests.integrations.trainers import (
    NO_DROPOUT,
    SETTINGS,
    Rows,
    arguments,
    by_layer,
    collate,
    examples,
    trainer_of,
    weights_of,
)
from tests.parts.test_own_head import model_of
from tests.pretrained import REFUSED

FAMILIES = [
    *(("sequence", family) for family in ("distilbert", "mpnet", "albert", "modernbert")),
    *(("causal", family) for family in ("llama", "gemma", "gpt2")),
    ("image", "vit"),
]


@pytest.mark.parametrize(("head", "family"), FAMILIES)
def test_the_layers_of_a_family_are_read_by_its_own_head(head, family, tmp_path):
    trainer = trainer_of(tmp_path, head, family, args={"train_sampling_strategy": "sequential"})
    before = copy.deepcopy(trainer.model)
    trainer.train()
    batch = collate([trainer.train_dataset[index] for index in range(8)])
    expected = layer_losses(before, batch)
    assert by_layer(trainer, "loss").shape == (4, 3)
    assert torch.allclose(by_layer(trainer, "loss")[0], expected, atol=1e-5)
    assert not torch.equal(
        weights_of(trainer), torch.cat([one.detach().flatten() for one in before.parameters()])
    )


@pytest.mark.parametrize(("head", "family"), FAMILIES)
def test_noise_enters_a_family_where_its_inputs_are(head, family, tmp_path):
    clean = trainer_of(tmp_path, head, family, args={"max_steps": 1})
    noisy = trainer_of(tmp_path, head, family, args={"max_steps": 1}, noise=Noise(gamma_train=0.5))
    for trainer in (clean, noisy):
        trainer.train()
    assert clean.noise.sigma_x is None
    difference = (by_layer(clean, "loss") - by_layer(noisy, "loss")).abs()
    assert bool((difference > 1e-5).all()), difference


def test_sigma_is_the_deviation_of_the_embeddings_of_all_tokens_but_padding(tmp_path):
    trainer = trainer_of(tmp_path, noise=Noise(gamma_train=0.5), args={"max_steps": 1})
    table = trainer.model.get_input_embeddings().weight.detach().clone()
    trainer.train()
    looked_up = torch.cat(
        [table[row["input_ids"]] for row in (trainer.train_dataset[i] for i in range(32))]
    )
    assert trainer.noise.sigma_x == pytest.approx(
        looked_up.double().std(correction=0).item(), rel=1e-6
    )


def test_erm_is_trainers_own_training(tmp_path):
    ours = trainer_of(tmp_path, objective="erm")
    theirs = Trainer(
        model_of("sequence", "bert", **NO_DROPOUT["bert"]),
        arguments(tmp_path),
        collate,
        train_dataset=examples("sequence"),
    )
    for trainer in (ours, theirs):
        trainer.train()
    assert torch.equal(weights_of(ours), weights_of(theirs))
    losses = [
        [row["loss"] for row in one.state.log_history if "loss" in row] for one in (ours, theirs)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
def test_an_update_is_one_of_the_plain_loop(form, tmp_path):
    settings = SETTINGS.model_copy(
        update={"form": form, "reference": 1.2, "dual": Dual(learning_rate=0.05)}
    )
    trainer = trainer_of(
        tmp_path,
        descent=settings,
        args={"train_sampling_strategy": "sequential", "max_grad_norm": 0.0, "optim": "sgd"},
    )
    model = copy.deepcopy(trainer.model)
    trainer.train()
    descent = LayerwiseDescent(
        3, 0.1, 1.2, form=form, resilience="decay", beta=5.0, dual=Dual(learning_rate=0.05)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(4):
        f = layer_losses(
            model, collate([trainer.train_dataset[8 * step + index] for index in range(8)])
        )
        assert torch.allclose(by_layer(trainer, "loss")[step], f, atol=1e-5)
        optimizer.zero_grad()
        descent.lagrangian(f).backward()
        descent.dual_step(f)
        optimizer.step()
        assert torch.allclose(
            by_layer(trainer, "multiplier")[step], descent.multiplier_values, atol=1e-5
        )
    assert descent.multiplier_values.max() > 0
    assert torch.allclose(
        weights_of(trainer),
        torch.cat([w.detach().flatten() for w in model.parameters()]),
        atol=1e-6,
    )


@pytest.mark.parametrize("form", ["linear", "log"])
@pytest.mark.parametrize(
    ("head", "family"), [("sequence", "bert"), ("token", "bert"), ("causal", "llama")]
)
@pytest.mark.parametrize("hidden", [[], [2, 3]], ids=["labels", "none in a micro-batch"])
def test_accumulation_is_the_step_of_one_batch(head, family, form, hidden, tmp_path):
    """Also where the micro-batches have different numbers of labels, or none."""
    results = []
    for size, steps in ((8, 1), (2, 4)):
        trainer = trainer_of(
            tmp_path,
            head,
            family,
            train_dataset=_hidden(head, hidden),
            descent=SETTINGS.model_copy(update={"form": form}),
            noise=Noise(gamma_train=0.3),
            args={
                **{
                    "per_device_train_batch_size": size,
                    "gradient_accumulation_steps": steps,
                    "optim": "sgd",
                },
                "train_sampling_strategy": "sequential",
            },
        )
        trainer.train()
        results.append(
            (by_layer(trainer, "loss"), by_layer(trainer, "multiplier"), weights_of(trainer))
        )
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert results[0][1].max() > 0


@pytest.mark.parametrize("family", ["llama", "gemma", "qwen2", "gpt2"])
def test_losses_in_chunks_are_those_of_all_logits(family, tmp_path):
    chunked, whole = (
        trainer_of(tmp_path, "causal", family, args={"optim": "sgd"}) for _ in range(2)
    )
    # Trainer hands such losses all logits.
    whole.compute_loss_func = lambda outputs, labels, num_items_in_batch: whole.model.loss_function(
        outputs.logits, labels, vocab_size=outputs.logits.shape[-1]
    )
    for trainer in (chunked, whole):
        trainer.train()
    assert chunked.problem is not None
    assert chunked.problem.reader.reads_in_chunks
    assert whole.problem is not None
    assert not whole.problem.reader.reads_in_chunks
    assert torch.allclose(by_layer(chunked, "loss"), by_layer(whole, "loss"), atol=1e-4)
    assert torch.allclose(weights_of(chunked), weights_of(whole), atol=1e-5)


def test_a_head_that_caps_its_logits_is_read_whole(tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(REFUSED["gemma2"])
    trainer = DescentTrainer(
        model, arguments(tmp_path), collate, train_dataset=examples("causal"), descent=SETTINGS
    )
    trainer.train()
    assert trainer.problem is not None
    assert not trainer.problem.reader.reads_in_chunks
    assert by_layer(trainer, "loss").shape == (4, 3)


@pytest.mark.parametrize("resilience", ["decay", "slack"])
@pytest.mark.parametrize("at", [2, 5], ids=["within an epoch", "after one"])
def test_a_resumed_training_is_the_uninterrupted_one(resilience, at, tmp_path):
    def trainer(steps: int):
        return trainer_of(
            tmp_path / str(steps),
            descent=SETTINGS.model_copy(update={"resilience": resilience, "beta": 0.5}),
            noise=Noise(gamma_train=0.3),
            model={},
            args={"max_steps": 8, "save_strategy": "steps", "save_steps": at, "seed": 3},
        )

    whole = trainer(1)
    whole.train()
    resumed = trainer(2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "1" / f"checkpoint-{at}"))
    assert torch.equal(weights_of(whole), weights_of(resumed))
    for one in (whole, resumed):
        assert one.problem is not None
    assert torch.equal(
        whole.problem.descent.multiplier_values, resumed.problem.descent.multiplier_values
    )
    assert torch.equal(whole.problem.descent.slack, resumed.problem.descent.slack)
    assert whole.problem.descent.multiplier_values.max() > 0


def test_the_log_form_resumes_exactly_with_dropout_and_accumulation(tmp_path):
    def trainer(name: str):
        steps = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
        batches = {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "optim": "sgd",
        }
        settings = SETTINGS.model_copy(update={"form": "log"})
        return trainer_of(tmp_path / name, model={}, descent=settings, args={**steps, **batches})

    whole, resumed = trainer("whole"), trainer("resumed")
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert torch.equal(weights_of(whole), weights_of(resumed))


def test_the_logged_loss_is_the_mean_of_the_updates_since_the_last_log(tmp_path):
    every, last = (trainer_of(tmp_path, args={"logging_steps": steps}) for steps in (1, 4))
    for trainer in (every, last):
        trainer.train()
    (logged,) = (row["loss"] for row in last.state.log_history if "loss" in row)
    assert logged == pytest.approx(by_layer(every, "loss")[:, -1].mean().item(), rel=1e-6)


def test_sigma_is_that_of_the_model_of_each_training(tmp_path):
    def make():
        model = model_of("sequence", "bert")
        model.get_input_embeddings().weight.data *= next(scales)
        return model

    scales = iter([1.0, 1.0, 2.0])
    trainer = DescentTrainer(
        args=arguments(tmp_path, max_steps=1),
        model_init=make,
        data_collator=collate,
        train_dataset=examples("sequence"),
        noise=Noise(gamma_train=0.1),
    )
    found = []
    for _ in range(2):
        trainer.train()
        found.append(trainer.noise.sigma_x)
    assert found == pytest.approx([found[0], 2 * (found[0] or 0)], rel=1e-6)
    assert found[0]


def test_slack_is_trained_with_the_weights_and_never_negative(tmp_path):
    trainer = trainer_of(
        tmp_path, descent=Descent(alpha=0.3, resilience="slack", beta=0.1), args={"max_steps": 3}
    )
    trainer.train()
    slack = by_layer(trainer, "slack")
    assert slack.max() > 0
    assert slack.min() >= 0


def test_warm_up_epochs_have_no_constraints(tmp_path):
    settings = SETTINGS.model_copy(update={"warmup_epochs": 1})
    trainer = trainer_of(tmp_path, descent=settings, args={"max_steps": 6})
    erm = trainer_of(tmp_path, objective="erm", args={"max_steps": 4})
    for one in (trainer, erm):
        one.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert ["multiplier/layer_01" in row for row in logged] == [False] * 4 + [True] * 2
    losses = [
        [row["loss"] for row in one.state.log_history if "loss" in row][:4]
        for one in (trainer, erm)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_the_verdict_is_that_of_single_examples(tmp_path):
    trainer = trainer_of(tmp_path, eval_dataset=examples("sequence", 20, seed=1))
    trainer.train()
    assert trainer.problem is not None
    rows = [collate([trainer.eval_dataset[index]]) for index in range(20)]
    with torch.no_grad():
        losses = torch.stack([layer_losses(trainer.model, row) for row in rows], 1).double()
    descent = trainer.problem.descent
    measured = Measurement(losses, torch.zeros_like(losses), torch.ones(20).double(), [""] * 20)
    expected = constraints.judge(measured, descent.reference, descent.rates, descent.slack.double())
    assert [one.verdict for one in trainer.verdicts] == [one.verdict for one in expected]
    for name in ("loss", "violation", "standard_error"):
        found, wanted = (
            [getattr(one, name) for one in verdicts] for verdicts in (trainer.verdicts, expected)
        )
        assert found == pytest.approx(wanted, abs=1e-5)
    assert trainer.state.log_history[-1]["eval_loss/layer_02"] == pytest.approx(
        losses.mean(1)[1].item(), abs=1e-5
    )


def test_the_verdict_about_tokens_counts_every_label_once(tmp_path):
    trainer = trainer_of(tmp_path, "causal", "llama", eval_dataset=examples("causal", 20, seed=1))
    trainer.train()
    with torch.no_grad():
        expected = layer_losses(
            trainer.model, collate([trainer.eval_dataset[index] for index in range(20)])
        )
    assert [one.loss for one in trainer.verdicts] == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("labels", ["none", "numbers"])
def test_what_has_no_reference_is_refused_in_one_line(labels, tmp_path):
    rows = [dict(examples("sequence")[index]) for index in range(8)]
    for row in rows:
        row["labels"] = 0.5
        if labels == "none":
            del row["labels"]
    with pytest.raises(UserError, match=r"descent\.reference") as raised:
        trainer_of(
            tmp_path,
            train_dataset=Rows(rows),
            data_collator=_without_labels if labels == "none" else collate,
        ).train()
    assert "\n" not in str(raised.value)


def _without_labels(rows):
    return {
        name: value
        for name, value in collate([{**row, "labels": 0} for row in rows]).items()
        if name != "labels"
    }


def test_a_checkpoint_of_plain_trainer_is_refused_in_one_line(tmp_path):
    plain = Trainer(
        model_of("sequence", "bert"),
        arguments(tmp_path, save_strategy="steps", save_steps=2),
        collate,
        train_dataset=examples("sequence"),
    )
    plain.train()
    with pytest.raises(UserError, match="λ is not known"):
        trainer_of(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_an_update_without_labels_is_refused_in_one_line(tmp_path):
    data, args = _hidden("token", range(8)), {"train_sampling_strategy": "sequential"}
    with pytest.raises(UserError, match="all labels of an update are -100") as raised:
        trainer_of(tmp_path, "token", train_dataset=data, args=args).train()
    assert "\n" not in str(raised.value)


def _hidden(head, hidden):
    """Examples of which some have no label that counts."""
    rows = [dict(examples(head)[index]) for index in range(32)]
    for index in hidden:
        rows[index]["labels"] = (
            -100 if head == "sequence" else torch.full_like(rows[index]["labels"], -100)
        )
    return Rows(rows)
