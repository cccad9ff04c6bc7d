"""The state of a training as displays show it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cudt.method.constraints import Form, Verdict, allowed_losses


@dataclass(frozen=True)
class TrainingView:
    """What a display shows at one moment of a training."""

    title: str
    step: int
    steps: int
    epoch: int
    epochs: int
    reference: float
    rates: list[float]
    warming_up: bool
    train_losses: dict[int, float]
    """By layer; ERM computes only the last one."""
    validation_losses: list[float] | None
    multipliers: list[float] | None
    """None for objectives without constraints."""
    weights: list[float] | None = None
    """The weight w_l of each layer's loss in the primal step; a negative one raises the loss."""
    form: Form = "linear"
    verdicts: list[Verdict] | None = None
    """On the constraint of each layer at the end of an epoch, as a run's verdicts are made; None
    within an epoch."""

    @property
    def ends_epoch(self) -> bool:
        """Whether this is after the last update of an epoch."""
        return self.step * self.epochs == self.epoch * self.steps

    def allowed(self, layer: int) -> float | None:
        """The largest loss that meets the layer's constraint, from the losses shown; None if they
        do not say.
        """
        shown = (self.shown(one) for one in range(1, len(self.rates) + 1))
        losses = torch.tensor(
            [math.nan if loss is None else loss for loss in shown], dtype=torch.double
        )
        allowed = allowed_losses(losses, self.reference, self.rates, self.form)[layer - 1].item()
        return None if math.isnan(allowed) else allowed

    def violation(self, layer: int) -> float | None:
        """How far the loss shown is above the one allowed; None if either is unknown."""
        loss, allowed = self.shown(layer), self.allowed(layer)
        return None if loss is None or allowed is None else loss - allowed

    @property
    def negative(self) -> list[int]:
        """The layers with a negative weight."""
        return [layer for layer, weight in enumerate(self.weights or [], 1) if weight < 0]

    def shown(self, layer: int) -> float | None:
        """The newest loss of a layer: of this batch if all layers have one, otherwise of the last
        validation.
        """
        if self.validation_losses is not None and len(self.train_losses) < len(self.rates):
            return self.validation_losses[layer - 1]
        return self.train_losses.get(layer)
