"""transformers.Trainer in which every layer has to lower the loss: python descent_trainer.py."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from cudt.integrations.trainer import Descent, DescentTrainer, Noise

torch.manual_seed(0)
size = {"vocab_size": 20, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
model = BertForSequenceClassification(
    BertConfig(**size, num_hidden_layers=4, initializer_range=0.1)
)
tokens = torch.randint(0, 20, (512, 8))
labels = (tokens < 10).sum(1) // 5  # whether more than half of the tokens are small: 0 or 1
examples = [
    {"input_ids": text, "labels": label} for text, label in zip(tokens, labels, strict=True)
]

with tempfile.TemporaryDirectory() as folder:
    trainer = DescentTrainer(
        model=model,
        args=TrainingArguments(
            folder,
            num_train_epochs=10,
            per_device_train_batch_size=32,
            learning_rate=2e-3,
            logging_steps=40,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=examples[:256],
        eval_dataset=examples[256:],
        descent=Descent(alpha=0.1),
        noise=Noise(gamma_train=0.2),
    )
    trainer.train()
print(f"multipliers {trainer.descent.multiplier_values}")
