"""The gradient of a trained head that many layers share, computed together with their losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

#: How far ∂J/∂loss may be from what was announced, as a share of its largest value; rounding takes
#: 1e-6.
_TOLERANCE = 1e-3


class HeadSums:
    """Σ over tokens of weight·∂loss/∂head: one buffer for all layers."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._sums: list[Any] = [
            None if one is None else torch.zeros_like(one.detach()) for one in (weight, bias)
        ]

    def add(self, weights: Tensor, p: Tensor, states: Tensor) -> None:
        """Add some tokens: their weights, softmax − one-hot, and states."""
        for_weight, for_bias = self._sums
        # The weights multiply the states, which are smaller than p.
        weighted = states * weights.unsqueeze(1).to(states)
        if for_weight.dtype == p.dtype:
            for_weight.addmm_(p.t(), weighted)
        else:
            for_weight += p.t() @ weighted
        if for_bias is not None:
            for_bias += torch.mv(p.t(), weights.to(p))

    def take(self, factor: Tensor | None = None) -> list[Any]:
        """The sums for weight and bias, times a factor; only once, so that autograd can keep them
        without a copy.
        """
        if not self._sums:
            raise RuntimeError(
                "the losses of a trained head can be back-propagated only once; compute them again"
            )
        sums, self._sums = self._sums, []
        return [
            one if one is None or factor is None else one.mul_(factor.to(one.dtype)) for one in sums
        ]


@dataclass(frozen=True)
class HeadShare:
    """What one layer adds to the gradient: `weights` are ∂J/∂loss of its examples, or of its
    tokens.
    """

    sums: HeadSums
    weights: Tensor


class HeadGradient:
    """∂J/∂head of losses that are still to be computed, for ∂J/∂losses announced up to a common
    factor.

    `share` is what each layer adds; `attach` gives the sum to autograd. Without it the logits of
    every layer would have to be computed again in the backward pass, or the gradient stored once
    per layer.
    """

    def __init__(self, announced: Tensor) -> None:
        """`announced`: ∂J/∂losses, (layers, examples)."""
        self._announced = announced
        self._head: nn.Linear | None = None
        self._sums: HeadSums | None = None

    def share(self, head: nn.Linear, row: int) -> HeadShare | None:
        """What the layer of a row of the losses adds; None if nothing is to be learned from it."""
        if not torch.is_grad_enabled() or not is_trained(head):
            return None
        if self._sums is None:
            self._head, self._sums = head, HeadSums(head.weight, head.bias)
        assert head is self._head, "all layers share one head"
        return HeadShare(self._sums, self._announced[row])

    def attach(self, losses: Tensor) -> Tensor:
        """The losses, (layers, examples), whose backward pass gives the head its gradient.

        If ∂J/∂losses is not what was announced, the head's gradient is NaN: to find out and raise
        an error, the CPU would have to wait for the device.
        """
        if self._sums is None or self._head is None:
            return losses
        apply: Any = _Attached.apply
        return apply(losses, self._head.weight, self._head.bias, self._announced, self._sums)


def is_trained(head: nn.Linear) -> bool:
    """Whether the head has weights that training changes."""
    return any(weight.requires_grad for weight in head.parameters())


class _Attached(torch.autograd.Function):
    """The identity in the losses; the backward pass returns the sums, times the factor in
    ∂J/∂losses.
    """

    @staticmethod
    def forward(
        ctx: Any, losses: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
    ) -> Tensor:
        announced, ctx.sums = rest
        ctx.save_for_backward(announced)
        # Not a view: hooks on one (FSDP's) get lost in operations in place, and torch warns of
        # that.
        return losses.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, found: Tensor) -> Any:
        (announced,) = ctx.saved_tensors
        scale = announced.abs().max().clamp_min(torch.finfo(announced.dtype).tiny)
        # Divided first, because squares of small numbers underflow.
        unit = announced / scale
        factor = (found * unit).sum() / unit.square().sum().clamp_min(0.5) / scale
        fits = (found - factor * announced).abs().max() <= _TOLERANCE * found.abs().max()
        return found, *ctx.sums.take(factor.where(fits, torch.nan)), None, None
