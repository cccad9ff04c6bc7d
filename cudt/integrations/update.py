"""One update in somebody else's loop: the shares of micro-batches and processes add up to the step
of one large batch.

J depends on the weights only through f, so its gradient is Σ_l ∂J/∂f_l · ∇f_l. Once ∂J/∂f is known,
every micro-batch and every process can back-propagate its share of f separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cudt.integrations.layers import Inputs, n_labels
from cudt.method.objectives import Objective
from cudt.tasks.base import IGNORED
from cudt.utils.errors import UserError


class DescentUpdate:
    """Sums of the layer losses over the labels of an update; `accelerator` is Accelerate's."""

    def __init__(
        self, objective: Objective, accelerator: Any, batches: Sequence[Inputs], *, shifted: bool
    ) -> None:
        """`shifted`: whether the loss compares a position with the label of the next one."""
        self._objective, self._accelerator, self._shifted = objective, accelerator, shifted
        self._sums: Tensor | None = None
        # At the end of a stream there may be no batch.
        none = torch.zeros((), dtype=torch.long, device=accelerator.device)
        self._total = self._summed(sum((self._count(batch) for batch in batches), none))
        self.weights: Tensor | None = None
        """∂J/∂f on the CPU; None while it needs the f of the update, in the log form."""
        if not objective.gradient_needs_losses:
            self.weights = objective.gradient(torch.ones(len(objective.layers)))
        elif len(batches) > 1:
            raise UserError(
                "gradient_accumulation_steps: the log form needs the losses of the whole batch "
                "first; set it to 1, or use form='linear'"
            )

    def share(self, losses: Tensor, batch: Inputs) -> Tensor:
        """The share of ∂J/∂f · f that a micro-batch back-propagates, from its mean losses."""
        found = losses.detach().float() * self._count(batch)
        self._sums = found if self._sums is None else self._sums + found
        if self.weights is None:
            self.weights = self._objective.gradient(self.mean())
        # Accelerate averages gradients over the processes, but their sum is needed.
        factor = self._accelerator.num_processes * self._count(batch) / self._total
        return factor * (self.weights.to(losses) @ losses)

    def mean(self) -> Tensor:
        """f of the layers that the objective reads, over all micro-batches and processes, on the
        CPU.
        """
        assert self._sums is not None
        if not self._total:
            raise UserError(
                f"all labels of an update are {IGNORED}, so it has no loss; remove examples "
                "without labels"
            )
        return (self._summed(self._sums) / self._total).cpu()

    def _count(self, batch: Inputs) -> Tensor:
        return n_labels(batch, shifted=self._shifted).to(self._accelerator.device)

    def _summed(self, values: Tensor) -> Tensor:
        return self._accelerator.reduce(values, reduction="sum")
