"""DescentTrainer against `cudt train`: the same model, data and order give the same layer losses
and multipliers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from cudt.config import recipe as recipes
from cudt.config.recipe import NamedRecipe
from cudt.data.batching import updates
from cudt.integrations.transformers import DescentTrainer
from cudt.training import train as training
from cudt.training.train import assemble_model
from tests import instructions, texts
from tests.conftest import quiet
from tests.integrations.trainers import Rows, arguments, by_layer, collate
from tests.pretrained import tiny_llama, tiny_pretrained

UPDATES = 50


class FirstToken(BertPreTrainedModel):
    """Reads the first token by one linear map, as cudt's `encoder` does."""

    base_model_prefix = "bert"
    config_class = BertConfig

    def __init__(self, config: Any, bert: nn.Module, head: nn.Linear) -> None:
        super().__init__(config)
        self.bert, self.head = bert, head

    def forward(self, input_ids, attention_mask=None, labels=None, **options):
        found = self.bert(input_ids, attention_mask=attention_mask, **options)
        logits = self.head(found.last_hidden_state[:, 0])
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=found.hidden_states)


def encoder(folder: Path) -> NamedRecipe:
    texts.write_reviews(folder)
    pretrained = tiny_pretrained(
        folder / "bert",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    path = texts.write_recipe(folder, pretrained, readout="first")
    changes = ["training.group_by_length=false", "training.epochs=9", "training.learning_rate=1e-3"]
    return recipes.load(str(path), [*changes, *COMMON], objective="constrained")


def llama(folder: Path) -> NamedRecipe:
    instructions.write_instructions(folder)
    path = instructions.write_recipe(folder, tiny_llama(folder / "llama"))
    return recipes.load(str(path), ["training.epochs=9", *COMMON], objective="constrained")


COMMON = [
    "noise.gamma_train=0",
    "descent.resilience=decay",
    "descent.beta=5",
    "descent.dual.learning_rate=0.05",
    "training.log_every=1",
]


def rows_in_order(recipe: NamedRecipe, task: Any) -> list[dict[str, Any]]:
    """What `cudt train` trains on, update by update, with labels as transformers has them."""
    found, settings = task.examples("train"), recipe.settings
    size, rows = settings.training.batch_size, []
    for epoch in range(settings.training.epochs):
        for chosen in updates(len(found), size, np.random.default_rng([settings.seed, epoch])):
            for index in chosen:
                batch = task.collate([found[index]])
                tokens, labels = batch["input_ids"][0], batch["labels"][0]
                if labels.ndim:
                    # cudt's label of a position is the next token, transformers' is the token
                    # itself.
                    labels = torch.cat([torch.tensor([-100]), labels[:-1]])
                rows.append(
                    {"input_ids": tokens, "labels": labels if labels.ndim else labels.item()}
                )
    return rows


@pytest.mark.parametrize("make", [encoder, llama])
def test_layer_losses_and_multipliers_are_those_of_cudt_train(make, tmp_path):
    torch.set_num_threads(1)
    recipe = make(tmp_path)
    run = training.train(recipe, tmp_path / "out", "cpu", tmp_path, quiet())
    history = run.read_table("history")
    trained = history[history["split"] == "train"]

    layerwise = assemble_model(recipe, tmp_path, torch.device("cpu"))
    model: Any = layerwise.model
    model = (
        FirstToken(model.encoder.config, model.encoder, model.head) if make is encoder else model.lm
    )
    settings = recipe.settings
    trainer = DescentTrainer(
        model,
        arguments(
            tmp_path / "trainer",
            max_steps=UPDATES,
            per_device_train_batch_size=settings.training.batch_size,
            learning_rate=settings.training.learning_rate,
            train_sampling_strategy="sequential",
            num_train_epochs=1,
        ),
        collate,
        train_dataset=Rows(rows_in_order(recipe, layerwise.task)),
        descent=settings.descent.model_copy(update={"reference": run.finished_info().reference}),
    )
    trainer.train()
    for name in ("loss", "multiplier", "violation", "weight"):
        expected = trained[trained["name"] == name].pivot(
            index="step", columns="layer", values="value"
        )
        difference = by_layer(trainer, name).numpy() - expected.to_numpy()[:UPDATES]
        assert len(difference) == UPDATES
        assert np.abs(difference).max() < 1e-5, (name, np.abs(difference).max())
    assert by_layer(trainer, "multiplier").max() > 0.1
