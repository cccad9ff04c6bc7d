"""Plain gradient ascent: λ ← λ + η₂·g."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from cudt.config.schema import Dual


def build(multipliers: torch.Tensor, settings: Dual) -> torch.optim.Optimizer:
    """Gradient ascent on λ."""
    import torch

    return torch.optim.SGD([multipliers], lr=settings.learning_rate, maximize=True)
