"""The steps of unrolled transformers (UT and DUST) and the energies they descend on.

With tokens x_1 … x_T in the rows of X, attention is similar to a descent step on g₁, and the ReLU
is a descent step on g₂. What theory guarantees for both, and how much of it holds after training,
is in docs/background/energies.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def pair_energy(y: Tensor, mask: Tensor) -> Tensor:
    """−Σ_{t<u} exp(−½‖y_t − y_u‖²) for each sequence; padding does not count."""
    kernel = torch.exp(-0.5 * torch.cdist(y, y) ** 2)
    pairs = (
        mask.unsqueeze(-1)
        & mask.unsqueeze(-2)
        & ~torch.eye(y.shape[-2], dtype=torch.bool, device=y.device)
    )
    return -0.5 * (kernel * pairs).sum((-1, -2))


def attention_energy(y: Tensor, mask: Tensor) -> Tensor:
    """g₁(Y) = −Σ_{t<u} exp(−½‖y_t − y_u‖²) + ½ Σ_t ‖y_t‖² for each sequence.

    Each pair counts once; then the preconditioner of the paper's proof is the diagonal of g₁'s
    surrogate.
    """
    return pair_energy(y, mask) + 0.5 * (y.square().sum(-1) * mask).sum(-1)


def relu_energy(x: Tensor, w2: Tensor, mask: Tensor) -> Tensor:
    """g₂(X) = ½ Σ_t x_tᵀ W₂ x_t + ½‖X‖² + φ(X) for each sequence; φ is +∞ if X has a negative
    entry.
    """
    smooth = 0.5 * ((x @ w2.T) * x + x.square()).sum(-1)
    negative = ((x < 0).any(-1) & mask).any(-1)
    return torch.where(negative, torch.inf, (smooth * mask).sum(-1))


def largest_descending_step(w2: Tensor) -> float:
    """2/M, M the largest eigenvalue of I + ½(W₂ + W₂ᵀ): no smaller ReLU step increases g₂."""
    identity = torch.eye(len(w2), dtype=w2.dtype, device=w2.device)
    curvature = torch.linalg.eigvalsh(identity + 0.5 * (w2 + w2.T))[-1].item()
    return 2 / curvature if curvature > 0 else float("inf")


class _Gram(torch.autograd.Function):
    """Y Yᵀ of each sequence, −∞ in the columns of padding.

    Autograd would take two products for the gradient of Y, one of them with a slow layout, and one
    more pass for the mask; (G + Gᵀ) Y is one product, and the softmax makes G zero in the columns
    of padding.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(y)
        products = y @ y.mT
        return products if mask is None else products.masked_fill_(~mask.unsqueeze(-2), -torch.inf)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (y,), (gradient,) = ctx.saved_tensors, gradients
        return (gradient + gradient.mT) @ y, None


def attention(y: Tensor, mask: Tensor | None = None, *, weighted: bool = False) -> Tensor:
    """softmax(Y Yᵀ), (sequences, T, T): the weights of attention with queries = keys = Y; padding
    is masked.

    `weighted` multiplies by exp(−½‖y_u‖²): the softmax is then over −½‖y_t − y_u‖², and the step
    never increases the pair energy of Y. Models use the unweighted attention, as in the paper.
    """
    logits: Tensor = _Gram.apply(y, mask)  # type: ignore[no-untyped-call]
    if weighted:
        logits = logits - 0.5 * y.square().sum(-1).unsqueeze(-2)
    return torch.softmax(logits, dim=-1)


def attend(x: Tensor, w1: Tensor, mask: Tensor | None = None, *, weighted: bool = False) -> Tensor:
    """softmax(Y Yᵀ) X with Y = X W₁ᵀ: one matrix for queries and keys, none for values; see
    `attention`.
    """
    return attention(x @ w1.T, mask, weighted=weighted) @ x


def attention_descent_step(y: Tensor, mask: Tensor) -> Tensor:
    """y_t ← Σ_{u≠t} γ_tu·y_u / Σ_u γ_tu, γ_tu = exp(−½‖y_t − y_u‖²): never increases g₁.

    This is the step Y − D⁻¹∇g₁ that the paper's proof takes. It is weighted attention without the
    token itself in the numerator; with it, as in the paper's theorem, the norms can grow
    (docs/background/energies.md).
    """
    kernel = torch.exp(-0.5 * torch.cdist(y, y) ** 2) * mask.unsqueeze(-2)
    return (kernel @ y - y) / kernel.sum(-1, keepdim=True)


def relu_step(z: Tensor, w2: Tensor, step_size: float) -> Tensor:
    """ReLU(W_s z) with W_s = (1−η)I − (η/2)(W₂ + W₂ᵀ), for each token."""
    identity = torch.eye(len(w2), dtype=w2.dtype, device=w2.device)
    # W_s is formed first: it is smaller than z, so the residual connection takes no pass over the
    # tokens.
    return torch.relu_(z @ ((1 - step_size) * identity - (0.5 * step_size) * (w2 + w2.T)))


class UnrolledLayer(nn.Module):
    """A layer of UT: attention, then the ReLU step. It gets its weights, because layers may share
    them.

    It is a module so that it can be compiled.
    """

    def __init__(self, step_size: float) -> None:
        super().__init__()
        self.step_size = step_size

    def forward(self, x: Tensor, w1: Tensor, w2: Tensor, mask: Tensor | None = None) -> Tensor:
        """X⁺ = ReLU(softmax(Y Yᵀ) X W_s), Y = X W₁ᵀ."""
        return relu_step(attend(x, w1, mask), w2, self.step_size)
