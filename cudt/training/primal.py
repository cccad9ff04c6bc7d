"""The primal step: the optimiser of the weights and the slacks, and the learning rate of each update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from cudt.config.schema import Training


class Primal:
    """Steps the weights of a model, and the slacks if constraints have them, against their gradients."""

    def __init__(self, model: nn.Module, slack: Iterable[Tensor], settings: Training, per_epoch: int) -> None:
        """`per_epoch` is the number of updates in an epoch, on which the learning rate depends."""
        assert settings.learning_rate is not None, "a validated recipe has the learning rate of its model"
        self._learning_rate = settings.learning_rate
        self._warmup = round(settings.warmup_share * settings.epochs * per_epoch)
        weights: list[Tensor] = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = _optimizer(settings, self._learning_rate, weights, list(slack))

    def step(self, update: int) -> None:
        """Do one step and forget the gradients; `update` counts from 0."""
        self._warm_up(update)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _warm_up(self, update: int) -> None:
        """Raise the learning rate linearly; it depends only on the update, so that a resume does not change it."""
        if self._warmup:
            for group in self.optimizer.param_groups:
                group["lr"] = self._learning_rate * min(1.0, (update + 1) / self._warmup)


def _optimizer(
    settings: Training, learning_rate: float, weights: list[Tensor], slack: list[Tensor]
) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": settings.weight_decay}]
    if slack:
        groups.append({"params": slack, "weight_decay": 0.0})
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=learning_rate)
