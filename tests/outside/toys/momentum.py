"""A dual optimiser: gradient ascent with momentum."""

from __future__ import annotations

import torch

from cudt.config.schema import Dual


def build(multipliers: torch.Tensor, settings: Dual) -> torch.optim.Optimizer:
    """λ follows a running sum of the violations."""
    return torch.optim.SGD([multipliers], lr=settings.learning_rate, momentum=0.5, maximize=True)
