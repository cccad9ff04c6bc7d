"""TRL's SFTTrainer with layerwise descent, by the mixin."""

from __future__ import annotations

from typing import Any

import datasets
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cudt.integrations.trainer import DescentMixin
from cudt.models.own_head import layer_losses
from tests.use.trainers import ARGUMENTS, SETTINGS, by_layer, model_of, weights_of

trl = pytest.importorskip("trl", reason="TRL needs Python 3.11")

COLOURS = ["red", "blue", "green", "white"]
TEXTS = [{"prompt": f"say {one} .", "completion": f" {one} {one}"} for one in COLOURS] * 4


class DescentSFTTrainer(DescentMixin, trl.SFTTrainer):  # type: ignore[name-defined]
    pass


def trained(kind: Any, folder: Any, **options: Any) -> Any:
    words = {word: number for number, word in enumerate(["<pad>", "</s>", "say", ".", *COLOURS])}
    tokens = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    more = {"bf16": False, "gradient_checkpointing": False}
    args = trl.SFTConfig(str(folder), **{**ARGUMENTS, **more, "max_steps": 3})
    trainer = kind(
        model_of("llama"),
        args,
        train_dataset=datasets.Dataset.from_list(TEXTS),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokens, pad_token="<pad>", eos_token="</s>"
        ),
        **options,
    )
    trainer.train()
    return trainer


def test_erm_is_trls_own_training(tmp_path):
    ours = trained(DescentSFTTrainer, tmp_path, objective="erm")
    theirs = trained(trl.SFTTrainer, tmp_path)
    assert torch.allclose(weights_of(ours.model), weights_of(theirs.model), atol=1e-6)


def test_layers_are_read_and_multipliers_move(tmp_path):
    trainer = trained(DescentSFTTrainer, tmp_path, descent=SETTINGS)
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(8)])
    names = ("input_ids", "attention_mask", "labels")
    expected = layer_losses(model_of("llama"), {name: batch[name] for name in names})
    assert torch.allclose(by_layer(trainer, "loss")[0], expected, atol=1e-5)
    assert by_layer(trainer, "multiplier").max() > 0
    # Only the answers have labels.
    assert int((batch["labels"] != -100).sum()) < int(batch["attention_mask"].sum())
