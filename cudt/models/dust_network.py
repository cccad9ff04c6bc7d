"""The network of DUST, the energy that it unrolls, and the steps of its layers (dust.py has their
equations).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cudt.data.loader import Batch
from cudt.models.base import Visit
from cudt.models.dust import Config
from cudt.models.patches import PatchModel, overcomplete_dct, to_patches
from cudt.models.unrolled_steps import attention, attention_energy
from cudt.tasks.video import VideoDenoising


def lista_loss(x: Tensor, h: Tensor, dictionary: Tensor, sparsity: float) -> Tensor:
    """½‖x_t − D h_t‖² + λ₁‖h_t‖₁ for each token."""
    return 0.5 * (x - h @ dictionary.T).square().sum(-1) + sparsity * h.abs().sum(-1)


def dust_energy(
    x: Tensor, h: Tensor, dictionary: Tensor, sparsity: float, correlation: float
) -> Tensor:
    """Σ_t (½‖x_t − D h_t‖² + λ₁‖h_t‖₁) + λ₂·g₁(H Dᵀ) for each sequence: the energy that DUST
    unrolls.
    """
    everywhere = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    pairs = attention_energy(h @ dictionary.T, everywhere)
    return lista_loss(x, h, dictionary, sparsity).sum(-1) + correlation * pairs


class _SoftThreshold(torch.autograd.Function):
    """φ(u) with its gradients in four passes over u; autograd takes a dozen for those of a
    clamp.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, threshold: Tensor) -> Tensor:
        inside = u.clamp(-threshold, threshold)
        h = torch.sub(u, inside, out=inside)
        ctx.save_for_backward(h, threshold)
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        h, threshold = ctx.saved_tensors
        # At a threshold of 0 this is the gradient where h is not 0, and 0 elsewhere.
        by_u = torch.ops.aten.softshrink_backward(gradients[0], h, 0.0)
        if not ctx.needs_input_grad[1]:
            return by_u, None
        return by_u, -h.sign().mul_(by_u).sum(dtype=threshold.dtype)


def soft_threshold(u: Tensor, threshold: Tensor) -> Tensor:
    """φ(u) = sign(u)·max(0, |u| − threshold), differentiable in both; the threshold is one
    number.
    """
    return _SoftThreshold.apply(u, threshold)  # type: ignore[no-untyped-call]


def lista_step(
    x: Tensor, z: Tensor, shown: Tensor, dictionary: Tensor, sparsity: float, c: Tensor
) -> Tensor:
    """φ_{λ₁/c}(U z + V x) for each token, given `shown` = D z; for c ≥ ‖D‖² it never increases the
    LISTA loss.

    It computes U z + V x as z + Dᵀ(x − D z)/c.
    """
    u = torch.addmm(z.flatten(0, -2), (x - shown).flatten(0, -2), dictionary / c)
    return soft_threshold(u, sparsity / c).view(z.shape)


def squared_norm(dictionary: Tensor) -> Tensor:
    """‖D‖² of a dictionary, or of each in a stack of them.

    It is the largest eigenvalue of DDᵀ, computed as ‖Dᵀu‖² with its eigenvector u; differentiable
    if it is simple.
    """
    with torch.autocast(dictionary.device.type, enabled=False):
        with torch.no_grad():
            gram = dictionary @ dictionary.mT
            # eigh would raise an error of its own; the NaN loss stops training with a clear
            # message. An `if` here would wait for the device.
            finite = gram.isfinite().all(-1).all(-1)[..., None, None]
            vectors = torch.linalg.eigh(gram.where(finite, 0.0)).eigenvectors
            direction = vectors[..., -1:].where(finite, torch.nan)
        return (dictionary.mT @ direction).square().sum((-1, -2))


class DustLayer(nn.Module):
    """A layer of DUST: attention, then a LISTA step. It gets its dictionary, because layers may
    share one.

    It is a module so that it can be compiled.
    """

    def __init__(self, sparsity: float, correlation: float) -> None:
        super().__init__()
        self.sparsity, self.correlation = sparsity, correlation

    def forward(self, x: Tensor, h: Tensor, y: Tensor, dictionary: Tensor, c: Tensor) -> Tensor:
        """The codes H⁺, from the codes H and Y = H Dᵀ of the layer before."""
        weights = self.correlation * attention(y)
        # D z comes from D h, because attention mixes tokens and the dictionary acts on each.
        return lista_step(x, weights @ h, weights @ y, dictionary, self.sparsity, c)


class Dust(PatchModel):
    """L layers of attention and LISTA; the state of a layer is the reconstruction from its
    codes.
    """

    def __init__(self, config: Config, task: VideoDenoising) -> None:
        super().__init__(task, config.patch)
        self.n_layers = config.layers
        self.sparsity = config.sparsity
        self.layer = DustLayer(config.sparsity, config.correlation)
        start = overcomplete_dct(config.patch, config.atoms)
        depth = 1 if config.tie_layers else config.layers
        self.dictionaries = nn.ParameterList(nn.Parameter(start.clone()) for _ in range(depth))
        self._known: tuple[list[tuple[int, int]], Tensor] | None = None

    def dictionary(self, layer: int) -> Tensor:
        """D of a layer, counted from 0."""
        return self.dictionaries[layer % len(self.dictionaries)]

    def _squared_norms(self) -> Tensor:
        """‖D‖² of each dictionary; without gradients they are computed once, because `eigh` waits
        for CUDA.
        """
        dictionaries = list(self.dictionaries)
        if torch.is_grad_enabled():
            # Forgotten here, because fused optimisers write without being counted.
            self._known = None
            return squared_norm(torch.stack(dictionaries))
        # Torch counts how often a tensor was written to.
        state = [(one.data_ptr(), one._version) for one in dictionaries]
        if self._known is None or self._known[0] != state:
            self._known = state, squared_norm(torch.stack(dictionaries))
        return self._known[1]

    def train(self, mode: bool = True) -> Dust:
        # Writing to `weight.data` is not counted.
        self._known = None
        return super().train(mode)

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        x = to_patches(signal, self.patch)
        norms = self._squared_norms().unbind()
        # The codes start at 0, and attention on zeros is zero.
        zeros = x.new_zeros(*x.shape[:-1], self.dictionary(0).shape[1])
        h = lista_step(x, zeros, torch.zeros_like(x), self.dictionary(0), self.sparsity, norms[0])
        visit(y := h @ self.dictionary(0).T)
        for layer in range(1, self.n_layers):
            dictionary, c = self.dictionary(layer), norms[layer % len(norms)]
            h = self.layer(x, h, y if len(norms) == 1 else h @ dictionary.T, dictionary, c)
            visit(y := h @ dictionary.T)

    def layer_modules(self) -> list[nn.Module]:
        return [self.layer]
