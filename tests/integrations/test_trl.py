"""TRL's SFTTrainer with layerwise descent."""

from __future__ import annotations

import importlib.util
import sys

import datasets
import pytest
import torch

from tests.integrations.trainers import SETTINGS, by_layer, weights_of
from tests.pretrained import tiny_llama, tiny_llama_tokenizer

if importlib.util.find_spec("trl") is None:
    pytest.skip("TRL is not installed; it needs Python 3.11", allow_module_level=True)

from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

from cudt.integrations.trl import DescentSFTTrainer, Noise
from cudt.models.own_head import layer_losses
from cudt.utils.errors import UserError

TEXTS = [
    {"prompt": f"Say {word}.", "completion": f" {word} {word}"}
    for word in ("red", "blue", "green", "white")
] * 4


def trainer_of(kind, tmp_path, **options):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = {"max_steps": 3, "logging_steps": 1, "save_strategy": "no", "report_to": []}
    args = SFTConfig(
        str(tmp_path / "out"),
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **{**settings, **options.pop("args", {})},
    )
    tokenizer = tiny_llama_tokenizer()
    tokenizer.pad_token = "</s>"
    return kind(
        AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path / "llama")),
        args,
        train_dataset=datasets.Dataset.from_list(TEXTS),
        processing_class=tokenizer,
        **options,
    )


def test_layers_are_read_and_multipliers_move(tmp_path):
    trainer = trainer_of(
        DescentSFTTrainer,
        tmp_path,
        descent=SETTINGS,
        args={"train_sampling_strategy": "sequential"},
    )
    # Not a copy of the trainer's: TRL replaces its forward pass.
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    trainer.train()
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(4)])
    expected = layer_losses(
        before, {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    )
    assert torch.allclose(by_layer(trainer, "loss")[0], expected, atol=1e-5)
    assert by_layer(trainer, "multiplier").shape == (3, 3)
    assert by_layer(trainer, "multiplier").max() > 0
    # Only the answers have labels.
    assert int((batch["labels"] != -100).sum()) < int(batch["attention_mask"].sum())


def test_erm_is_trls_own_training(tmp_path):
    ours = trainer_of(DescentSFTTrainer, tmp_path, objective="erm")
    theirs = trainer_of(SFTTrainer, tmp_path)
    for trainer in (ours, theirs):
        trainer.train()
    assert torch.allclose(weights_of(ours), weights_of(theirs), atol=1e-6)


def test_adapters_noise_and_a_verdict(tmp_path):
    trainer = trainer_of(
        DescentSFTTrainer,
        tmp_path,
        descent=SETTINGS,
        noise=Noise(gamma_train=0.2),
        peft_config=LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear"),
        eval_dataset=datasets.Dataset.from_list(TEXTS[:4]),
    )
    trainer.train()
    assert len(trainer.verdicts) == 3
    assert trainer.noise.sigma_x is not None
    assert trainer.evaluate()["eval_loss"] > 0


def test_without_trl_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "cudt.integrations.trl")
    with pytest.raises(UserError, match="pip install trl"):
        importlib.import_module("cudt.integrations.trl")
