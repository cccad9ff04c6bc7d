"""Two trainings with DescentTrainer as runs of cudt, evaluated under noise: python stored_run.py."""

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import cudt
from cudt.integrations.transformers import Descent, DescentTrainer, Noise

tokens = torch.randint(0, 20, (768, 8), generator=torch.Generator().manual_seed(0))
labels = (tokens < 10).sum(1) // 5  # whether more than half of the tokens are small: 0 or 1
examples = [{"input_ids": text, "labels": label} for text, label in zip(tokens, labels, strict=True)]
size = {"vocab_size": 20, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}

for objective in ("erm", "constrained"):
    torch.manual_seed(0)
    trainer = DescentTrainer(
        model=BertForSequenceClassification(BertConfig(**size, num_hidden_layers=4, initializer_range=0.1)),
        args=TrainingArguments(
            f"checkpoints/{objective}",
            run_name="small-tokens",
            num_train_epochs=10,
            per_device_train_batch_size=32,
            learning_rate=2e-3,
            logging_steps=20,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=examples[:256],
        eval_dataset=examples[256:512],
        test_dataset=examples[512:],
        objective=objective,
        descent=Descent(alpha=0.1, resilience="decay", beta=10.0),
        noise=Noise(gamma_train=0.2),
        report_to_cudt="outputs",
    )
    trainer.train()

for run in cudt.find_runs("outputs/small-tokens"):
    table = cudt.evaluate(run, gammas=[0, 0.5, 1], quiet=True)
    accuracy = table[table["metric"] == "accuracy"].set_index("gamma")["value"].to_dict()
    print(f"{run.path}: accuracy by noise level {accuracy}")
