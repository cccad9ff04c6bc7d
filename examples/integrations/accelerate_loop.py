"""Layerwise descent with Accelerate: accumulated gradients, and any number of processes.

python accelerate_loop.py, or torchrun --nproc_per_node 2 accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import cudt

torch.manual_seed(0)
size = {"vocab_size": 20, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
config = BertConfig(**size, **no_dropout, num_hidden_layers=4, initializer_range=0.1)
model = BertForSequenceClassification(config)
tokens = torch.randint(0, 20, (256, 8))
labels = (tokens < 10).sum(1) // 5  # whether more than half of the tokens are small: 0 or 1
examples = [{"input_ids": text, "labels": label} for text, label in zip(tokens, labels, strict=True)]

on_cpu = not torch.accelerator.is_available()  # Accelerate has to be told if several processes share CPUs
accelerator = Accelerator(cpu=on_cpu, gradient_accumulation_steps=2)
per_process = 32 // accelerator.gradient_accumulation_steps // accelerator.num_processes
loader = DataLoader(examples, batch_size=per_process)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
descent = cudt.LayerwiseDescent(n_layers=4, alpha=0.1, reference=0.69, resilience="slack", beta=1.0)
descent.add_slack_to(optimizer)  # before prepare, which wraps the optimizer
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

accumulated = []
for epoch in range(5):
    for batch in loader:
        with accelerator.accumulate(model):
            f = cudt.layer_losses(model, batch)
            accelerator.backward(descent.lagrangian(f))
            accumulated.append(f.detach())
            if accelerator.sync_gradients:  # once per update: λ ascends on the f of the whole update
                mean = accelerator.reduce(torch.stack(accumulated).mean(0), reduction="mean")
                descent.dual_step(mean)
                accumulated.clear()
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch + 1}: layer losses {mean}, multipliers {descent.multiplier_values}")
accelerator.end_training()
