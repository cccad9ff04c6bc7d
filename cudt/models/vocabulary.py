"""Losses over a vocabulary whose logits are never all in memory at once.

32 layers × 512 tokens × 128,256 words would take 8 GB. Here a layer's answer is the input of the
head, and losses are computed in chunks of tokens. Gradients are computed in the forward pass, while
the logits of a chunk are in memory:

    p = softmax(logits) − one-hot(target)         overwrites the logits
    ∂loss/∂state = p·head                         kept for the backward pass, times ∂J/∂loss there
    ∂J/∂head = Σ over tokens ∂J/∂loss·p⊗state     if ∂J/∂loss is known before the losses

That takes three products of the size of the head, and two if the head is frozen. If the head is
trained and ∂J/∂loss is not known before the losses, the backward pass computes the logits again,
which takes a fourth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cudt.data.loader import Batch
from cudt.tasks.base import IGNORED

#: Logits in memory at a time: 64 MB in fp32.
CHUNK = 2**24
Sums = list[Any]
"""∂J/∂weight and ∂J/∂bias of a head; None for a bias that it does not have."""


def positions(batch: Batch) -> Tensor:
    """The indices of labelled tokens in the flattened batch, in order.

    A task puts them into its batches as `labelled`: finding them on a GPU makes the CPU wait.
    """
    if "labelled" in batch:
        return batch["labelled"]
    return (batch["labels"].flatten() != IGNORED).nonzero().squeeze(1)


def labels_of(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The label of each labelled token, the example of each, and the tokens of each example."""
    labels, found = batch["labels"], positions(batch)
    rows = found.div(labels.shape[1], rounding_mode="floor")
    return labels.flatten()[found], rows, (labels != IGNORED).sum(1).clamp_min(1)


@dataclass(frozen=True)
class TokenLogits:
    """head(states) at the labelled tokens, unevaluated; softmax and losses are in `dtype`."""

    states: Tensor
    """(tokens, width): the output of the final norm at every token that has a label."""
    head: nn.Linear
    dtype: torch.dtype = torch.float32
    added_to: tuple[HeadGradient, int] | None = None
    """The gradient of the head that the losses add their part to, and their row in it."""

    def float(self) -> TokenLogits:
        """The same logits, with softmax and losses in fp32."""
        return dataclasses.replace(self, dtype=torch.float32)

    def double(self) -> TokenLogits:
        """The same in fp64, but for the product with the head, whose weights would double."""
        return dataclasses.replace(self, dtype=torch.float64)

    def adding_to(self, gradient: HeadGradient, row: int) -> TokenLogits:
        """The same logits, whose losses add a row's part to the gradient of the head."""
        return dataclasses.replace(self, added_to=(gradient, row))

    def mean_losses(self, batch: Batch) -> Tensor:
        """The mean of −log softmax(head(state))_target over each example's tokens."""
        is_learned = self.states.requires_grad or is_trained(self.head)
        if not (torch.is_grad_enabled() and is_learned):
            return self.judge(batch)[0]
        targets, rows, counts = labels_of(batch)
        weights, sums = None, None
        if self.added_to is not None and is_trained(self.head):
            gradient, row = self.added_to
            weights, sums = (gradient.announced[row] / counts)[rows], gradient.sums_of(self.head)
        apply: Any = _Losses.apply
        weight, bias = self.head.weight, self.head.bias
        losses = apply(self.states, weight, bias, targets, self.dtype, weights, sums)
        return losses.new_zeros(len(counts)).index_add(0, rows, losses) / counts

    @torch.no_grad()
    def judge(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """For each example the mean loss, and the share of targets that are the likeliest word."""
        targets, rows, counts = labels_of(batch)
        factors = _factors(self.states, self.head.weight, self.head.bias)
        means = torch.zeros(2, len(counts), dtype=self.dtype, device=targets.device)
        for part, losses, log_p in _chunks(factors, targets, self.dtype):
            hits = (log_p.argmax(1) == targets[part]).to(self.dtype)
            means.index_add_(1, rows[part], torch.stack([losses, hits]))
        losses, hits = means / counts
        return losses, hits


def is_trained(module: nn.Module) -> bool:
    """Whether a module has weights that training changes."""
    return any(weight.requires_grad for weight in module.parameters())


class HeadGradient:
    """∂J/∂head of all layers, added up in one buffer while their losses are computed.

    `announced` is ∂J/∂losses, (layers, examples), of losses that are still to be computed, up to a
    factor, which the backward pass finds. Without it the backward pass would compute the logits of
    every layer again.
    """

    def __init__(self, announced: Tensor) -> None:
        self.announced = announced
        self._sums: Sums = []

    def sums_of(self, head: nn.Linear) -> Sums:
        """The buffer of the head, which all layers share."""
        self._sums = self._sums or _zeros(head.weight, head.bias)
        return self._sums


class _Losses(torch.autograd.Function):
    """The loss of each token, with gradients for the states and the head.

    With `sums`, the part of the head's gradient is added to them, for given `weights` of the
    losses. Of the layers that share them, the first in the backward pass hands them over.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        states, weight, bias, targets, dtype, weights, sums = given
        factors = _factors(states, weight, bias)
        losses = torch.empty_like(targets, dtype=dtype)
        gradient = torch.empty_like(factors[0]) if ctx.needs_input_grad[0] else None
        for part, found, log_p in _chunks(factors, targets, dtype):
            losses[part] = found
            p = _minus_one_hot(log_p, targets[part], factors[0].dtype)
            if gradient is not None:
                torch.mm(p, factors[1], out=gradient[part])
            if sums is not None:
                _add(sums, weights[part], p, factors[0][part])
        ctx.again = sums is None and any(ctx.needs_input_grad[1:3])
        ctx.dtype, ctx.sums = dtype, sums
        kept = (*factors, weight, bias, targets) if ctx.again else (weights,)
        ctx.save_for_backward(gradient, *kept)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: Tensor) -> Any:
        gradient, *kept = ctx.saved_tensors
        by_state = None if gradient is None else by_loss.unsqueeze(1) * gradient
        by_head: Sums = [None, None]
        if ctx.again:
            *factors, weight, bias, targets = kept
            by_head = _zeros(weight, bias)
            for part, _, log_p in _chunks(factors, targets, ctx.dtype):
                p = _minus_one_hot(log_p, targets[part], factors[0].dtype)
                _add(by_head, by_loss[part], p, factors[0][part])
        elif ctx.sums:
            largest = kept[0].abs().argmax(0, keepdim=True)
            factor = by_loss[largest] / kept[0][largest]
            # In place and the only reference: autograd makes them the gradient without a copy.
            by_head = [None if one is None else one.mul_(factor.to(one.dtype)) for one in ctx.sums]
            ctx.sums.clear()
        return by_state, *by_head, None, None, None, None


def _factors(states: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    """States, weight and bias in the number format of their product, which autocast may choose."""
    kind = weight.device.type
    is_on = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if is_on else weight.dtype
    return states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _chunks(
    factors: Sequence[Any], targets: Tensor, dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """For each chunk of tokens its slice, the losses, and log softmax, which the next chunk
    overwrites.
    """
    states, weight, bias = factors
    tokens, words = len(targets), len(weight)
    n_chunks = max(1, -(-tokens // max(1, CHUNK // words)))
    # Chunks of equal size: a short last one would take more time per token.
    size = max(1, -(-tokens // n_chunks))
    buffer = states.new_empty(size, words)
    for start in range(0, tokens, size):
        part = slice(start, min(start + size, tokens))
        logits = buffer[: part.stop - start]
        if bias is None:
            torch.mm(states[part], weight.t(), out=logits)
        else:
            torch.addmm(bias, states[part], weight.t(), out=logits)
        if dtype == logits.dtype:
            log_p = torch.log_softmax(logits, 1, out=logits)
        else:
            log_p = torch.log_softmax(logits, 1, dtype=dtype)
        yield part, -log_p.gather(1, targets[part].unsqueeze(1)).squeeze(1), log_p


def _minus_one_hot(log_p: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """softmax − one-hot(target), in place of log softmax."""
    p, targets = log_p.exp_(), targets.unsqueeze(1)
    return p.scatter_add_(1, targets, p.new_full(targets.shape, -1.0)).to(dtype)


def _zeros(weight: Tensor, bias: Tensor | None) -> Sums:
    return [None if one is None else torch.zeros_like(one.detach()) for one in (weight, bias)]


def _add(sums: Sums, weights: Tensor, p: Tensor, states: Tensor) -> None:
    """Add Σ over some tokens of weight·p⊗state, and of weight·p for the bias."""
    by_weight, by_bias = sums
    # The weights multiply the states, which are smaller than p.
    weighted = states * weights.unsqueeze(1).to(states)
    if by_weight.dtype == p.dtype:
        by_weight.addmm_(p.t(), weighted)
    else:
        by_weight += p.t() @ weighted
    if by_bias is not None:
        by_bias += torch.mv(p.t(), weights.to(p))
