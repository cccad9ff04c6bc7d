"""Logits over a vocabulary that are never all in memory at once.

32 layers × 512 tokens × 128,256 words would take 8 GB. Here a layer's answer is the input of the head, and losses are
computed in chunks of tokens; autograd stores only the states of a chunk and computes its logits again in the backward
pass. On CUDA, Liger's fused kernel is used if it is installed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

#: Logits in memory at a time: 64 MB in fp32, and the same again for each intermediate result of softmax.
CHUNK = 2**24


@dataclass(frozen=True)
class TokenLogits:
    """head(states), unevaluated; losses are computed in `dtype`."""

    states: Tensor
    """(tokens, width): the output of the final norm at every token that has a label."""
    head: nn.Linear
    dtype: torch.dtype = torch.float32

    def float(self) -> TokenLogits:
        return dataclasses.replace(self, dtype=torch.float32)

    def double(self) -> TokenLogits:
        """Softmax in fp64; the product with the head keeps its precision, because its weights would double in size."""
        return dataclasses.replace(self, dtype=torch.float64)

    def losses(self, targets: Tensor) -> Tensor:
        """−log softmax(head(state))_target for each token, with gradients for states and head."""
        kernel = fused_kernel() if self.states.is_cuda and self.dtype == torch.float32 else None
        if kernel is not None:
            # The chunk size of the code below; Liger's default is small, and every chunk reads the whole head.
            budget = max(1, CHUNK // self.states.numel())
            return kernel(
                self.states, self.head.weight, targets, self.head.bias, reduction="none", chunk_mem_const=budget
            ).float()
        # A head has no dropout, so the random state need not be stored.
        parts = [
            checkpoint(self._losses, rows, wanted, use_reentrant=False, preserve_rng_state=False)
            for rows, wanted in self._chunks(targets)
        ]
        return torch.cat(parts)

    @torch.no_grad()
    def losses_and_hits(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The losses without gradients, and whether each target is the most likely word."""
        losses, hits = [], []
        for rows, wanted in self._chunks(targets):
            logits = self.head(rows).to(self.dtype)
            losses.append(F.cross_entropy(logits, wanted, reduction="none"))
            hits.append((logits.argmax(-1) == wanted).to(self.dtype))
        return torch.cat(losses), torch.cat(hits)

    def _losses(self, states: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(states).to(self.dtype), targets, reduction="none")

    def _chunks(self, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        rows = max(1, CHUNK // self.head.out_features)
        return zip(self.states.split(rows), targets.split(rows), strict=True)


@functools.cache
def fused_kernel() -> Callable[..., Any] | None:
    """Liger's fused linear cross-entropy, if it is installed and gives each token's own gradient."""
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import fused_linear_cross_entropy_forward
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy
    except ImportError:
        return None
    # Older versions use the gradient of the first token's loss for all tokens.
    known = inspect.signature(fused_linear_cross_entropy_forward).parameters
    return liger_fused_linear_cross_entropy if {"token_grad_output", "chunk_mem_const"} <= known.keys() else None
