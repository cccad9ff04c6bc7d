"""Logits over a vocabulary that are never all in memory at once.

32 layers × 512 tokens × 128,256 words would take 8 GB. Here a layer's answer is the input of the
head, and losses are computed in chunks of tokens. Gradients are computed in the forward pass, while
the logits of a chunk are in memory:

    p = softmax(logits) − one-hot(target)         overwrites the logits
    ∂loss/∂state = p·head                         kept for the backward pass, which multiplies it by ∂J/∂loss
    ∂J/∂head = Σ over tokens ∂J/∂loss·p⊗state     if ∂J/∂loss is known before the losses (head_gradient.py)

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
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cudt.tasks.head_gradient import HeadGradient, HeadShare, HeadSums, is_trained
from cudt.tasks.labelled import Labelled

#: Logits in memory at a time: 64 MB in fp32.
CHUNK = 2**24


@dataclass(frozen=True)
class TokenLogits:
    """head(states), unevaluated; losses are computed in `dtype`."""

    states: Tensor
    """(tokens, width): the output of the final norm at every token that has a label."""
    head: nn.Linear
    dtype: torch.dtype = torch.float32
    share: HeadShare | None = None
    """What `mean_losses` adds to the gradient of the head; None if the backward pass computes
    it."""

    def float(self) -> TokenLogits:
        return dataclasses.replace(self, dtype=torch.float32)

    def double(self) -> TokenLogits:
        """Softmax in fp64; the product with the head keeps its precision, because its weights would
        double in size.
        """
        return dataclasses.replace(self, dtype=torch.float64)

    def adding_to(self, gradient: HeadGradient, row: int) -> TokenLogits:
        """The same logits, whose `mean_losses`, a row of the losses, add their part of the gradient
        of the head.
        """
        return dataclasses.replace(self, share=gradient.share(self.head, row))

    def judge(self, batch: Any) -> tuple[Tensor, Tensor]:
        labelled = Labelled.of(batch)
        losses, hits = self.losses_and_hits(labelled.targets)
        return labelled.means(losses), labelled.means(hits)

    def mean_losses(self, batch: Any) -> Tensor:
        """The mean loss of each example's tokens, with gradients for states and head."""
        labelled = batch if isinstance(batch, Labelled) else Labelled.of(batch)
        share = self.share
        if share is not None:
            share = dataclasses.replace(share, weights=labelled.by_token(share.weights))
        return labelled.means(self._losses(labelled.targets, share))

    def losses(self, targets: Tensor) -> Tensor:
        """−log softmax(head(state))_target for each token, with gradients for states and head."""
        return self._losses(targets, None)

    def _losses(self, targets: Tensor, share: HeadShare | None) -> Tensor:
        if torch.is_grad_enabled() and (self.states.requires_grad or is_trained(self.head)):
            how = _How(self.dtype, _product_dtype(self.head.weight), share)
            apply: Any = _Losses.apply
            return apply(self.states, self.head.weight, self.head.bias, targets, how)
        chunks = self._chunks(targets)
        return torch.cat(
            [F.cross_entropy(logits, wanted, reduction="none") for logits, wanted in chunks]
        )

    @torch.no_grad()
    def losses_and_hits(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The losses without gradients, and whether each target is the most likely word."""
        losses, hits = [], []
        for logits, wanted in self._chunks(targets):
            losses.append(F.cross_entropy(logits, wanted, reduction="none"))
            hits.append((logits.argmax(-1) == wanted).to(self.dtype))
        return torch.cat(losses), torch.cat(hits)

    def _chunks(self, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and targets, in chunks of tokens."""
        rows = max(1, CHUNK // self.head.out_features)
        for states, wanted in zip(self.states.split(rows), targets.split(rows), strict=True):
            yield self.head(states).to(self.dtype), wanted


@dataclass(frozen=True)
class DenseLogits:
    """Logits that are in memory, for heads that are more than one linear map, or have few
    classes.
    """

    logits: Tensor
    """(tokens, classes): of every token that has a label."""

    def float(self) -> DenseLogits:
        return DenseLogits(self.logits.float())

    def double(self) -> DenseLogits:
        return DenseLogits(self.logits.double())

    def judge(self, batch: Any) -> tuple[Tensor, Tensor]:
        labelled = Labelled.of(batch)
        losses, hits = self.losses_and_hits(labelled.targets)
        return labelled.means(losses), labelled.means(hits)

    def mean_losses(self, batch: Any) -> Tensor:
        """The mean loss of each example's tokens."""
        labelled = batch if isinstance(batch, Labelled) else Labelled.of(batch)
        return labelled.means(F.cross_entropy(self.logits, labelled.targets, reduction="none"))

    def losses_and_hits(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each token, and whether its label is the most likely class."""
        losses = F.cross_entropy(self.logits, targets, reduction="none")
        return losses, (self.logits.argmax(-1) == targets).to(losses.dtype)


# ---------------------------------------------------------------- losses with gradients


@dataclass(frozen=True)
class _How:
    """How to compute losses and gradients, besides the tensors."""

    dtype: torch.dtype
    """Of softmax and losses."""
    product_dtype: torch.dtype
    """Of the products with the head."""
    share: HeadShare | None
    """What is added to the gradient of the head, by token; None if the backward pass computes
    it."""


def _product_dtype(weight: Tensor) -> torch.dtype:
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


class _Losses(torch.autograd.Function):
    """The loss of each token. Its gradient is right for any ∂J/∂loss; only that of a `share` was
    decided before.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: _How
    ) -> Tensor:
        read = _Readout.of(states, weight, bias, how.product_dtype)
        losses = torch.empty_like(targets, dtype=how.dtype)
        gradient = torch.empty_like(read.states) if ctx.needs_input_grad[0] else None
        for part, found, p in read.chunks(targets, how.dtype):
            losses[part] = found
            if gradient is not None:
                torch.mm(p, read.weight, out=gradient[part])
            if how.share is not None:
                how.share.sums.add(how.share.weights[part], p, read.states[part])
        ctx.again = how if how.share is None and any(ctx.needs_input_grad[1:3]) else None
        ctx.save_for_backward(gradient, *((states, weight, bias, targets) if ctx.again else ()))
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> Any:
        gradient, *saved = ctx.saved_tensors
        for_states = None if gradient is None else weights.unsqueeze(1) * gradient
        return (
            for_states,
            *(_head_gradient(weights, saved, ctx.again) if ctx.again else (None, None)),
            None,
            None,
        )


def _head_gradient(weights: Tensor, saved: list[Tensor], how: _How) -> list[Any]:
    """The gradient of the head for the weights of the losses, from logits that are computed
    again.
    """
    states, weight, bias, targets = saved
    read, sums = _Readout.of(states, weight, bias, how.product_dtype), HeadSums(weight, bias)
    for part, _, p in read.chunks(targets, how.dtype):
        sums.add(weights[part], p, read.states[part])
    return sums.take()


@dataclass(frozen=True)
class _Readout:
    """The tensors of states·weightᵀ + bias, in the number format of the product."""

    states: Tensor
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(
        cls, states: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> _Readout:
        return cls(states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))

    def chunks(self, targets: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """For each chunk of tokens: its slice, the losses, and p, which the next chunk
        overwrites.
        """
        tokens, words = len(targets), len(self.weight)
        n_chunks = -(-tokens // max(1, CHUNK // words))
        # Chunks of equal size: a short last one would take more time per token.
        size = -(-tokens // max(1, n_chunks))
        buffer = self.states.new_empty(size, words)
        for start in range(0, tokens, max(1, size)):
            part = slice(start, min(start + size, tokens))
            wanted = targets[part].unsqueeze(1)
            log_p = _log_softmax(self._logits(part, buffer[: part.stop - start]), dtype)
            losses = -log_p.gather(1, wanted).squeeze(1)
            p = log_p.exp_()
            p.scatter_add_(1, wanted, p.new_full(wanted.shape, -1.0))
            yield part, losses, p.to(self.states.dtype)

    def _logits(self, part: slice, out: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(self.states[part], self.weight.t(), out=out)
        return torch.addmm(self.bias, self.states[part], self.weight.t(), out=out)


def _log_softmax(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """log softmax in a number format; overwrites logits that have it."""
    if logits.dtype == dtype:
        return torch.log_softmax(logits, 1, out=logits)
    return torch.log_softmax(logits, 1, dtype=dtype)
