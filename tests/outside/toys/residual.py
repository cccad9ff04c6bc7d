"""A model: residual layers of one number a position, read out by their mean."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from cudt.config.schema import ModelSection
from cudt.data.loader import Batch
from cudt.models.base import LayeredModel, Visit
from cudt.tasks.base import Task


class Config(ModelSection):
    """The depth of the model."""

    layers: int = 3
    """Number of layers."""


class Residual(LayeredModel):
    """X_l = X_{l−1} + tanh(X_{l−1} W_l)."""

    signal_is_learned = False

    def __init__(self, n_layers: int, length: int) -> None:
        super().__init__()
        self.n_layers = n_layers
        self.layers = nn.ModuleList(nn.Linear(length, length) for _ in range(n_layers))
        self.head = nn.Linear(length, 2)

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The numbers; all positions are real."""
        numbers = batch["numbers"].unsqueeze(-1)
        return numbers, torch.ones(numbers.shape[:2], dtype=torch.bool, device=numbers.device)

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        """Hand over X_1 … X_L."""
        state = signal.squeeze(-1)
        for layer in self.layers:
            state = state + layer(state).tanh()
            visit(state)

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        """One linear head for every layer."""
        return self.head(state)


def build(config: Config, task: Task, data_root: Path | None) -> Residual:
    """The model, as long as the task's sequences."""
    return Residual(config.layers, len(task.examples("train")[0].numbers))
