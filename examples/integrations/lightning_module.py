"""Layerwise descent with Lightning: python lightning_module.py."""

from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import cudt
from cudt.integrations.lightning import LayerwiseDescentCallback


class Classifier(lightning.LightningModule):
    """A tiny BERT whose layers all have to lower the loss."""

    def __init__(self, constraints: LayerwiseDescentCallback) -> None:
        super().__init__()
        size = {
            "vocab_size": 20,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 2,
        }
        self.model = BertForSequenceClassification(
            BertConfig(**size, num_hidden_layers=4, initializer_range=0.1)
        )
        self.constraints = constraints

    def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.constraints.loss(cudt.layer_losses(self.model, batch))

    def validation_step(self, batch: dict[str, Any]) -> None:
        self.constraints.measure(cudt.layer_losses(self.model, batch), len(batch["labels"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        self.constraints.descent.add_slack_to(optimizer)
        return optimizer


torch.manual_seed(0)
tokens = torch.randint(0, 20, (512, 8))
labels = (tokens < 10).sum(1) // 5  # whether more than half of the tokens are small: 0 or 1
examples = [
    {"input_ids": text, "labels": label} for text, label in zip(tokens, labels, strict=True)
]
training = DataLoader(examples[:256], batch_size=32, shuffle=True)
validation = DataLoader(examples[256:], batch_size=16)

descent = cudt.LayerwiseDescent(n_layers=4, alpha=0.1, reference=0.69, resilience="slack", beta=1.0)
constraints = LayerwiseDescentCallback(descent, warmup_epochs=1)
trainer = lightning.Trainer(
    max_epochs=5,
    callbacks=[constraints],
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Classifier(constraints), training, validation)
print(f"multipliers {descent.multiplier_values}")
