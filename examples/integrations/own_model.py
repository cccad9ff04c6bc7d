"""A model of your own in which every layer has to lower the loss: python own_model.py."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cudt


class Model(nn.Module):
    """Four layers, each of which is read by the same head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        layers = [nn.TransformerEncoderLayer(32, 2, 64, 0.1, batch_first=True) for _ in range(4)]
        self.blocks, self.head = nn.ModuleList(layers), nn.Linear(32, 2)

    def forward(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        state, answers = self.embed(tokens), []
        for block in self.blocks:
            state = block(state)
            answers.append(self.head(state.mean(1)))
        return answers


torch.manual_seed(0)
tokens = torch.randint(0, 20, (256, 8))
labels = (tokens < 10).sum(1) // 5  # whether more than half of the tokens are small: 0 or 1
loader = DataLoader(TensorDataset(tokens, labels), batch_size=32, shuffle=True)

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
descent = cudt.LayerwiseDescent(4, alpha=0.1, reference=0.69, resilience="decay", beta=10.0)
for epoch in range(10):
    for tokens, labels in loader:
        f = torch.stack([nn.functional.cross_entropy(answer, labels) for answer in model(tokens)])
        optimizer.zero_grad()
        descent.lagrangian(f).backward()
        descent.dual_step(f)
        optimizer.step()
    print(f"epoch {epoch + 1}: layer losses {f.detach()}, multipliers {descent.multiplier_values}")
