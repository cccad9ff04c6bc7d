"""How far training is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class TrainingState:
    """How far training is, and its best epoch so far."""

    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0
    sigma_x: float = math.nan
    best: list[float] | None = None
    """The rank of the best epoch; lower is better, compared from left to right."""
    best_epoch: int = 0
    best_slack: list[float] = field(default_factory=list)
    """In units of the loss, at the end of the best epoch, before it restarts."""
    last_slack: list[float] = field(default_factory=list)
    """The same of the last epoch."""
    best_multipliers: list[float] | None = None
    validation_losses: list[float] | None = None
    """Of the last validation, by layer."""
