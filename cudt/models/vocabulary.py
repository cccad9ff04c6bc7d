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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cudt.data.batching import Batch
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


@dataclass(frozen=True)
class Labelled:
    """The labels of a batch, and the examples they belong to."""

    targets: Tensor
    """(tokens,): the label of each."""
    rows: Tensor
    """(tokens,): the example that each belongs to."""
    counts: Tensor
    """(examples,): the number of each example's tokens."""

    @classmethod
    def of(cls, batch: Batch) -> Labelled:
        labels, found = batch["labels"], positions(batch)
        rows = found.div(labels.shape[1], rounding_mode="floor")
        return cls(labels.flatten()[found], rows, (labels != IGNORED).sum(1))

    def means(self, values: Tensor) -> Tensor:
        """The mean of each example's tokens."""
        sums = values.new_zeros(len(self.counts)).index_add(0, self.rows, values)
        return sums / self.counts.clamp_min(1)

    def by_token(self, weights: Tensor) -> Tensor:
        """The weight of each token in Σ weight·mean over the examples."""
        return (weights / self.counts.clamp_min(1))[self.rows]


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
        """The same logits, whose losses are a row of those that a head's gradient is added up for."""
        return dataclasses.replace(self, added_to=(gradient, row))

    def mean_losses(self, batch: Batch) -> Tensor:
        """The mean of −log softmax(head(state))_target over each example's tokens."""
        labelled = Labelled.of(batch)
        needs_gradients = self.states.requires_grad or is_trained(self.head)
        if not (torch.is_grad_enabled() and needs_gradients):
            return labelled.means(self._losses_and_hits(labelled.targets)[0])
        weights, sums = None, None
        if self.added_to is not None and is_trained(self.head):
            gradient, row = self.added_to
            sums = gradient.sums_of(self.head)
            weights = labelled.by_token(gradient.announced[row])
        apply: Any = _Losses.apply
        head = (self.head.weight, self.head.bias)
        losses = apply(self.states, *head, labelled.targets, self.dtype, weights, sums)
        return labelled.means(losses)

    def judge(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """For each example the mean loss, and the share of targets that are the likeliest word."""
        labelled = Labelled.of(batch)
        losses, hits = self._losses_and_hits(labelled.targets)
        return labelled.means(losses), labelled.means(hits)

    @torch.no_grad()
    def _losses_and_hits(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        losses = torch.empty_like(targets, dtype=self.dtype)
        hits = torch.empty_like(losses)
        tensors = _for_product(self.states, self.head.weight, self.head.bias)
        for part, found, log_p in _chunks(*tensors, targets, self.dtype):
            losses[part] = found
            hits[part] = (log_p.argmax(1) == targets[part]).to(self.dtype)
        return losses, hits


def is_trained(module: nn.Module) -> bool:
    """Whether a module has weights that training changes."""
    return any(weight.requires_grad for weight in module.parameters())


class HeadGradient:
    """∂J/∂head of all layers, added up in one buffer while their losses are computed.

    `announced` is ∂J/∂losses, (layers, examples), of losses that are still to be computed, up to a
    factor. The backward pass must follow it, and finds the factor; without it, it would compute the
    logits of every layer again.
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

    With `sums`, the head's gradient was added to them for the given weights of the losses. Of the
    layers that share them, the first in the backward pass hands them over.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        dtype: torch.dtype,
        weights: Tensor | None,
        sums: Sums | None,
    ) -> Tensor:
        tensors = _for_product(states, weight, bias)
        losses = torch.empty_like(targets, dtype=dtype)
        gradient = torch.empty_like(tensors[0]) if ctx.needs_input_grad[0] else None
        for part, found, log_p in _chunks(*tensors, targets, dtype):
            losses[part] = found
            p = _minus_one_hot(log_p, targets[part], tensors[0].dtype)
            if gradient is not None:
                torch.mm(p, tensors[1], out=gradient[part])
            if sums is not None and weights is not None:
                _add(sums, weights[part], p, tensors[0][part])
        again = sums is None and any(ctx.needs_input_grad[1:3])
        ctx.dtype, ctx.again, ctx.sums = dtype, again, sums
        ctx.save_for_backward(
            gradient, weights, *((*tensors, weight, bias, targets) if again else ())
        )
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: Tensor) -> Any:
        gradient, weights, *saved = ctx.saved_tensors
        by_state = None if gradient is None else by_loss.unsqueeze(1) * gradient
        found: Sums = [None, None]
        if ctx.again:
            *tensors, weight, bias, targets = saved
            found = _zeros(weight, bias)
            for part, _, log_p in _chunks(*tensors, targets, ctx.dtype):
                p = _minus_one_hot(log_p, targets[part], tensors[0].dtype)
                _add(found, by_loss[part], p, tensors[0][part])
        elif ctx.sums:
            largest = weights.abs().argmax()
            factor = by_loss[largest] / weights[largest]
            # In place and without another reference: autograd keeps them as the gradient.
            found = [None if one is None else one.mul_(factor.to(one.dtype)) for one in ctx.sums]
            ctx.sums.clear()
        return by_state, *found, None, None, None, None


def _for_product(
    states: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """States, weight and bias in the number format of their product, which autocast may choose."""
    kind = weight.device.type
    is_on = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if is_on else weight.dtype
    return states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _chunks(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """For each chunk of tokens its slice, the losses, and log softmax, which the next chunk
    overwrites.
    """
    tokens, words = len(targets), len(weight)
    n_chunks = -(-tokens // max(1, CHUNK // words))
    # Chunks of equal size: a short last one would take more time per token.
    size = max(1, -(-tokens // max(1, n_chunks)))
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
