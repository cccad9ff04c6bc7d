"""Losses over a vocabulary whose logits are never all in memory at once.

A layer's answer is the input of the head, and losses are computed in chunks of tokens. The gradient
of the states is computed in the forward pass, while the logits of a chunk are in memory:

    p = softmax(logits) − one-hot(target)         overwrites the logits
    ∂loss/∂state = p·head                         kept for the backward pass, times ∂J/∂loss there
    ∂J/∂head = Σ over tokens ∂J/∂loss·p⊗state     only in the backward pass, which knows ∂J/∂loss

That takes two products of the size of the head. If the head is trained, the backward pass computes
the logits again: four products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cudt.data.loader import Batch
from cudt.tasks.base import IGNORED

#: Logits in memory at a time: 64 MB in fp32.
CHUNK = 2**24


def positions(batch: Batch) -> Tensor:
    """The indices of labelled tokens in the flattened batch, in order."""
    if "labelled" in batch:  # by the task, because finding them on a GPU makes the CPU wait
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
    """Without a bias."""
    dtype: torch.dtype = torch.float32

    def float(self) -> TokenLogits:
        """The same logits, with softmax and losses in fp32."""
        return dataclasses.replace(self, dtype=torch.float32)

    def double(self) -> TokenLogits:
        """The same in fp64, but for the product with the head, whose weights would double."""
        return dataclasses.replace(self, dtype=torch.float64)

    def mean_losses(self, batch: Batch) -> Tensor:
        """The mean of −log softmax(head(state))_target over each example's tokens."""
        weight = self.head.weight
        if not (torch.is_grad_enabled() and (self.states.requires_grad or weight.requires_grad)):
            return self.judge(batch)[0]
        targets, rows, counts = labels_of(batch)
        losses: Tensor = _Losses.apply(self.states, weight, targets, self.dtype)  # type: ignore[no-untyped-call]
        return losses.new_zeros(len(counts)).index_add(0, rows, losses) / counts

    @torch.no_grad()
    def judge(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """For each example the mean loss, and the share of targets that are the likeliest word."""
        targets, rows, counts = labels_of(batch)
        means = torch.zeros(2, len(counts), dtype=self.dtype, device=targets.device)
        factors = _factors(self.states, self.head.weight)
        for part, losses, log_p in _chunks(*factors, targets, self.dtype):
            hits = (log_p.argmax(1) == targets[part]).to(self.dtype)
            means.index_add_(1, rows[part], torch.stack([losses, hits]))
        losses, hits = means / counts
        return losses, hits


class _Losses(torch.autograd.Function):
    """The loss of each token."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype
    ) -> Tensor:
        factors = states, head = _factors(states, weight)
        losses = torch.empty_like(targets, dtype=dtype)
        gradient = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        for part, found, log_p in _chunks(*factors, targets, dtype):
            losses[part] = found
            if gradient is not None:
                torch.mm(_minus_one_hot(log_p, targets[part], head.dtype), head, out=gradient[part])
        ctx.dtype, ctx.weight_dtype = dtype, weight.dtype
        of_head = (*factors, targets) if ctx.needs_input_grad[1] else ()
        ctx.save_for_backward(gradient, *of_head)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: Tensor) -> Any:
        gradient, *of_head = ctx.saved_tensors
        by_state = None if gradient is None else by_loss.unsqueeze(1) * gradient
        by_head = None
        if of_head:
            states, head, targets = of_head
            by_head = torch.zeros_like(head, dtype=ctx.weight_dtype)
            for part, _, log_p in _chunks(states, head, targets, ctx.dtype):
                p = _minus_one_hot(log_p, targets[part], head.dtype)
                # The weights multiply the states, which are smaller than p.
                weighted = states[part] * by_loss[part].unsqueeze(1).to(states)
                if by_head.dtype == p.dtype:
                    by_head.addmm_(p.t(), weighted)
                else:
                    by_head += p.t() @ weighted
        return by_state, by_head, None, None


def _factors(states: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """States and head in the number format of their product, which autocast may choose."""
    kind = weight.device.type
    is_on = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if is_on else weight.dtype
    return states.to(dtype), weight.to(dtype)


def _chunks(
    states: Tensor, head: Tensor, targets: Tensor, dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """For each chunk of tokens its slice, losses and log softmax, which the next overwrites."""
    tokens, words = len(targets), len(head)
    n_chunks = max(1, -(-tokens // max(1, CHUNK // words)))
    # Chunks of equal size: a short last one would take more time per token.
    size = max(1, -(-tokens // n_chunks))
    buffer = states.new_empty(size, words)
    for start in range(0, tokens, size):
        part = slice(start, min(start + size, tokens))
        logits = torch.mm(states[part], head.t(), out=buffer[: part.stop - start])
        into = {"out": logits} if dtype == logits.dtype else {"dtype": dtype}
        log_p = torch.log_softmax(logits, 1, **into)
        yield part, -log_p.gather(1, targets[part].unsqueeze(1)).squeeze(1), log_p


def _minus_one_hot(log_p: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """softmax − one-hot(target), in place of log softmax."""
    p, targets = log_p.exp_(), targets.unsqueeze(1)
    return p.scatter_add_(1, targets, p.new_full(targets.shape, -1.0)).to(dtype)
