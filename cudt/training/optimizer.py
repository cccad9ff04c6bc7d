"""The optimiser of the weights, and the schedule of its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from cudt.config.schema import Training
from cudt.models.base import LayeredModel
from cudt.utils.errors import UserError


def primal_optimizer(model: LayeredModel, training: Training) -> torch.optim.Optimizer:
    """Adam or AdamW on the trained weights; those of the readout may have a rate of their own."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained}]
    if (rate := training.readout_learning_rate) is not None:
        of_readout = {id(weight) for weight in model.readout_weights()}
        apart = [weight for weight in trained if id(weight) in of_readout]
        if not apart:
            raise UserError(
                "training.readout_learning_rate: the readout of this model has no weights of its "
                "own to train; remove it"
            )
        rest = [weight for weight in trained if id(weight) not in of_readout]
        groups = [{"params": rest}, {"params": apart, "lr": rate}]
    kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.Adam
    assert training.learning_rate is not None, "a validated recipe has that of its model"
    # The rate of the slack that is added later follows from this one, too.
    return kind(groups, training.learning_rate, weight_decay=training.weight_decay, fused=True)


def learning_rate_share(training: Training, n_updates: int) -> Callable[[int], float]:
    """The share of the full learning rate that an update has; updates count from 0. It rises to 1
    over the warm-up, beginning above 0, then stays there or falls to 0, in a line or a cosine.
    """
    warmup = round(training.warmup_share * n_updates)
    first = min(1, warmup)

    def share(update: int) -> float:
        if update + first < warmup:
            return (update + first) / warmup
        left = (n_updates - update) / max(1, n_updates + first - warmup)
        cosine = (1 + math.cos(math.pi * (1 - left))) / 2
        return {"constant": 1.0, "linear": left, "cosine": cosine}[training.schedule]

    return share
