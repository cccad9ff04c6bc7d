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
    """In units of the loss, at the best validation, before it restarts."""
    last_slack: list[float] = field(default_factory=list)
    """The same at the last validation."""
    best_multipliers: list[float] | None = None
    validation_losses: list[float] | None = None
    """Of the last validation, by layer."""
    best_step: int | None = None
    """The update after which the best weights were validated."""
    validated_step: int = 0
    """The update after which validation data were measured last."""
    since_best: int = 0
    """Validations in a row that were not the best so far; those of warm-up do not count."""
    stopped_early: bool = False
    """Whether training ended before its last update, because since_best reached
    training.early_stopping."""
