"""DescentTrainer with what people use Trainer with: peft, checkpointing of gradients, bf16, several
processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import TrainingArguments

from cudt.config.schema import Noise
from cudt.utils.errors import UserError
from tests.integrations.trainers import (
    NO_DROPOUT,
    SETTINGS,
    by_layer,
    examples,
    trainer_of,
    weights_of,
)
from tests.parts.test_own_head import model_of
from tests.processes import together


def adapted(head: str, family: str) -> Any:
    kind = {"sequence": "SEQ_CLS", "token": "TOKEN_CLS", "causal": "CAUSAL_LM"}.get(head)
    # ViT has no type of its own in peft: its classifier is trained as it is.
    saved = None if kind else ["classifier"]
    targets = ["query", "value"] if family == "bert" else "all-linear"
    config = LoraConfig(
        task_type=kind, r=2, lora_alpha=4, target_modules=targets, modules_to_save=saved
    )
    return get_peft_model(model_of(head, family, **NO_DROPOUT.get(family, {})), config)


@pytest.mark.parametrize(
    ("head", "family"),
    [
        ("sequence", "bert"),
        ("token", "bert"),
        ("causal", "llama"),
        ("causal", "gpt2"),
        ("image", "vit"),
    ],
)
def test_adapters_are_trained_and_the_weights_below_are_not(head, family, tmp_path):
    model = adapted(head, family)
    frozen = {name: one.clone() for name, one in model.named_parameters() if not one.requires_grad}
    trained = {name: one.clone() for name, one in model.named_parameters() if one.requires_grad}
    trainer = trainer_of(tmp_path, head, own=model, noise=Noise(gamma_train=0.2))
    trainer.train()
    after = dict(model.named_parameters())
    assert frozen
    assert all(torch.equal(after[name], one) for name, one in frozen.items())
    assert (
        sum(not torch.equal(after[name], one) for name, one in trained.items()) > len(trained) // 2
    )
    assert by_layer(trainer, "loss").shape == (4, 3)


@pytest.mark.parametrize(("head", "family"), [("sequence", "bert"), ("causal", "llama")])
@pytest.mark.parametrize("peft", [False, True], ids=["whole", "lora"])
def test_checkpointing_of_gradients_changes_nothing(head, family, peft, tmp_path):
    losses = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = (
            adapted(head, family) if peft else model_of(head, family, **NO_DROPOUT.get(family, {}))
        )
        trainer = trainer_of(
            tmp_path,
            head,
            own=model,
            args={"gradient_checkpointing": checkpointing, "optim": "sgd"},
        )
        trainer.train()
        losses.append((by_layer(trainer, "loss"), weights_of(trainer)))
    assert torch.allclose(losses[0][0], losses[1][0], atol=1e-5)
    assert torch.allclose(losses[0][1], losses[1][1], atol=1e-6)


def test_reentrant_checkpointing_is_refused_in_one_line(tmp_path):
    args = {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    }
    with pytest.raises(ValueError, match="use_reentrant") as raised:
        trainer_of(tmp_path, args=args).train()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("head", "family"), [("sequence", "bert"), ("causal", "llama")])
def test_bf16_is_close_to_fp32(head, family, tmp_path):
    found = []
    for bf16 in (False, True):
        trainer = trainer_of(tmp_path, head, family, args={"bf16": bf16, "learning_rate": 1e-3})
        trainer.train()
        found.append(by_layer(trainer, "loss"))
    exact, rounded = found
    assert torch.allclose(exact, rounded, rtol=0.03)
    assert not torch.equal(exact, rounded)
    assert all(weight.dtype == torch.float32 for weight in trainer.model.parameters())


@pytest.mark.parametrize("form", ["linear", "log"])
@pytest.mark.parametrize(("head", "family"), [("sequence", "bert"), ("causal", "llama")])
def test_two_processes_are_one(head, family, form, tmp_path):
    def train(size: int) -> Any:
        trainer = trainer_of(
            tmp_path,
            head,
            family,
            descent=SETTINGS.model_copy(update={"form": form}),
            noise=Noise(gamma_train=0.3),
            args={
                "per_device_train_batch_size": size,
                "train_sampling_strategy": "sequential",
                "optim": "sgd",
            },
            eval_dataset=examples(head, 6, seed=1),
        )
        trainer.train()
        assert trainer.problem is not None
        verdicts = [one.verdict for one in trainer.verdicts]
        logged = by_layer(trainer, "loss")
        return (
            trainer.args.world_size,
            logged,
            weights_of(trainer),
            trainer.problem.descent.multiplier_values,
            verdicts,
        )

    # In a process of its own, too: after a backward pass, this one could not be forked any more.
    ((size, *whole),) = together(1, lambda: train(8))
    first, second = together(2, lambda: train(4))
    assert (size, first[0], second[0]) == (1, 2, 2)
    for one, left, right in zip(whole[:3], first[1:4], second[1:4], strict=True):
        assert torch.allclose(one, left, atol=1e-5)
        assert torch.equal(left, right)
    assert whole[3] == first[4] == second[4]
    assert whole[2].max() > 0


def test_several_gpus_of_one_process_are_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(UserError, match="accelerate launch"):
        trainer_of(tmp_path)
