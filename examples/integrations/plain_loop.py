"""A classifier without constraints, for comparison with pytorch_loop.py."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
size = {"vocab_size": 20, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
model = BertForSequenceClassification(
    BertConfig(**size, num_hidden_layers=4, initializer_range=0.1)
)
tokens = torch.randint(0, 20, (256, 8))
labels = (tokens < 10).sum(1) // 5  # whether more than half of the tokens are small: 0 or 1
examples = [
    {"input_ids": text, "labels": label} for text, label in zip(tokens, labels, strict=True)
]
loader = DataLoader(examples, batch_size=32, shuffle=True)

optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(10):
    for batch in loader:
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
