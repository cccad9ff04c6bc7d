"""DUST, the deep unfolded sequential transformer (Weerdt et al., 2023), which computes sparse codes
of video patches.

The codes h_1 … h_T of one patch position over T frames, in the rows of H, and a dictionary D whose
columns are atoms:

    Z  = λ₂·softmax(H DᵀD Hᵀ / s²) H                        attention
    h⁺ = φ_{λ₁/c}(U z + V x),  U = I − DᵀD/c,  V = Dᵀ/c     a proximal gradient step
    Y  = H⁺ Dᵀ                                              the reconstruction of the layer

φ is the soft threshold, and H starts at 0. Only D is trained. c = ‖D‖² is the Lipschitz constant of
the gradient of the LISTA loss ½‖x − D h‖² + λ₁‖h‖₁, so that no step raises it, however D is trained
(docs/method.md). Pixel values are 0 to 255, which sets the scale of λ₁. Attention compares D h_t in
units of s = 255 (`model.attention_unit`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cudt.config import models as sections
from cudt.data.loader import Batch
from cudt.models.base import Visit
from cudt.models.patches import PatchModel, overcomplete_dct, to_patches
from cudt.models.unrolled import attention
from cudt.tasks.base import Task

Config = sections.Dust


class _SoftThreshold(torch.autograd.Function):
    """φ(u) with its gradients in four passes over u; autograd takes a dozen."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, threshold: Tensor) -> Tensor:
        inside = u.clamp(-threshold, threshold)
        h = torch.sub(u, inside, out=inside)
        ctx.save_for_backward(h, threshold)
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        h, threshold = ctx.saved_tensors
        # At a threshold of 0 this is the gradient where h is not 0, and 0 elsewhere.
        by_u = torch.ops.aten.softshrink_backward(gradients[0], h, 0.0)
        return by_u, -h.sign().mul_(by_u).sum(dtype=threshold.dtype)


def soft_threshold(u: Tensor, threshold: Tensor) -> Tensor:
    """φ(u) = sign(u)·max(0, |u| − threshold), differentiable in both."""
    return _SoftThreshold.apply(u, threshold)  # type: ignore[no-untyped-call]


def lista_step(
    x: Tensor, z: Tensor, shown: Tensor, dictionary: Tensor, sparsity: float, c: Tensor
) -> Tensor:
    """φ_{λ₁/c}(U z + V x) for each token, given `shown` = D z, as U z + V x = z + Dᵀ(x − D z)/c."""
    u = torch.addmm(z.flatten(0, -2), (x - shown).flatten(0, -2), dictionary / c)
    return soft_threshold(u, sparsity / c).view(z.shape)


def squared_norm(dictionary: Tensor) -> Tensor:
    """‖D‖² of each dictionary in a stack: ‖Dᵀu‖² with the eigenvector u of the largest eigenvalue
    of DDᵀ.
    """
    with torch.autocast(dictionary.device.type, enabled=False):
        with torch.no_grad():
            direction = torch.linalg.eigh(dictionary @ dictionary.mT).eigenvectors[..., -1:]
        return (dictionary.mT @ direction).square().sum((-1, -2))


class DustLayer(nn.Module):
    """Attention, then a LISTA step; a module so that it can be compiled."""

    def __init__(self, sparsity: float, correlation: float, unit: float) -> None:
        super().__init__()
        self.sparsity, self.correlation, self.unit = sparsity, correlation, unit

    def forward(self, x: Tensor, h: Tensor, y: Tensor, dictionary: Tensor, c: Tensor) -> Tensor:
        """The codes H⁺, from the codes H and Y = H Dᵀ of the layer before."""
        weights = self.correlation * attention(y / self.unit)
        # D z comes from D h, because attention mixes tokens and the dictionary acts on each.
        return lista_step(x, weights @ h, weights @ y, dictionary, self.sparsity, c)


class Dust(PatchModel):
    """L layers; the state of a layer is the reconstruction from its codes."""

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task)
        self.layer = DustLayer(config.sparsity, config.correlation, config.attention_unit)
        start = overcomplete_dct(config.patch, config.atoms)
        depth = range(1 if config.tie_layers else config.layers)
        self.dictionaries = nn.ParameterList(nn.Parameter(start.clone()) for _ in depth)

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        x = to_patches(signal, self.patch)
        norms = squared_norm(torch.stack([*self.dictionaries]))
        d, sparsity = self.dictionaries[0], self.layer.sparsity
        # The codes start at 0, and attention on zeros is zero.
        zeros = x.new_zeros(*x.shape[:-1], d.shape[1])
        h = lista_step(x, zeros, torch.zeros_like(x), d, sparsity, norms[0])
        visit(y := h @ d.T)
        for layer in range(1, self.n_layers):
            index = layer % len(norms)
            d, c = self.dictionaries[index], norms[index]
            h = self.layer(x, h, y if len(norms) == 1 else h @ d.T, d, c)
            visit(y := h @ d.T)

    def layer_modules(self) -> list[nn.Module]:
        return [self.layer]


def build(config: Config, task: Task, data_root: Path | None) -> Dust:
    """A DUST for frames of the task's size."""
    return Dust(config, task)
