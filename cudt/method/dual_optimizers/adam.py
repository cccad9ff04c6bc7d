"""Adam, as in the paper: its steps do not depend on the scale of the violations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from cudt.config.schema import Dual


def build(multipliers: torch.Tensor, settings: Dual) -> torch.optim.Optimizer:
    """Adam on λ."""
    import torch

    return torch.optim.Adam([multipliers], lr=settings.learning_rate, maximize=True)
