"""The network of DUST, the energy that it unrolls, and the steps of its layers (dust.py has their equations)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cudt.data.batching import Batch
from cudt.models.base import Visit
from cudt.models.dust import Config
from cudt.models.patches import PatchModel, overcomplete_dct, to_patches
from cudt.models.unrolled_steps import attend, attention_energy
from cudt.tasks.video_denoising import VideoDenoising


def lista_loss(x: Tensor, h: Tensor, dictionary: Tensor, sparsity: float) -> Tensor:
    """½‖x_t − D h_t‖² + λ₁‖h_t‖₁ for each token."""
    return 0.5 * (x - h @ dictionary.T).square().sum(-1) + sparsity * h.abs().sum(-1)


def dust_energy(x: Tensor, h: Tensor, dictionary: Tensor, sparsity: float, correlation: float) -> Tensor:
    """Σ_t (½‖x_t − D h_t‖² + λ₁‖h_t‖₁) + λ₂·g₁(H Dᵀ) for each sequence: the energy that DUST unrolls."""
    everywhere = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    attention = attention_energy(h @ dictionary.T, everywhere)
    return lista_loss(x, h, dictionary, sparsity).sum(-1) + correlation * attention


def soft_threshold(u: Tensor, threshold: Tensor) -> Tensor:
    """φ(u) = sign(u)·max(0, |u| − threshold), differentiable in both."""
    return u - u.clamp(-threshold, threshold)


def lista_step(x: Tensor, z: Tensor, dictionary: Tensor, sparsity: float, c: Tensor) -> Tensor:
    """φ_{λ₁/c}(U z + V x) for each token; for c ≥ ‖D‖² it never increases the LISTA loss."""
    return soft_threshold(z + (x - z @ dictionary.T) @ dictionary / c, sparsity / c)


def squared_norm(dictionary: Tensor) -> Tensor:
    """‖D‖², the largest eigenvalue of DDᵀ, as ‖Dᵀu‖² with its eigenvector u; differentiable if it is simple."""
    with torch.autocast(dictionary.device.type, enabled=False):
        with torch.no_grad():
            gram = dictionary @ dictionary.T
            # eigh would raise an error of its own; the NaN loss stops training with a clear message.
            if not gram.isfinite().all():
                return gram.new_tensor(torch.nan)
            direction = torch.linalg.eigh(gram).eigenvectors[:, -1]
        return (dictionary.T @ direction).square().sum()


class Dust(PatchModel):
    """L layers of attention and LISTA; the state of a layer is the reconstruction from its codes."""

    def __init__(self, config: Config, task: VideoDenoising) -> None:
        super().__init__(task, config.patch)
        self.n_layers = config.layers
        self.sparsity, self.correlation = config.sparsity, config.correlation
        start = overcomplete_dct(config.patch, config.atoms)
        depth = 1 if config.tie_layers else config.layers
        self.dictionaries = nn.ParameterList(nn.Parameter(start.clone()) for _ in range(depth))

    def dictionary(self, layer: int) -> Tensor:
        """D of a layer, counted from 0."""
        return self.dictionaries[layer % len(self.dictionaries)]

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        x = to_patches(signal, self.patch)
        h = x.new_zeros(*x.shape[:-1], self.dictionary(0).shape[1])
        norms = [squared_norm(dictionary) for dictionary in self.dictionaries]
        for layer in range(self.n_layers):
            dictionary, c = self.dictionary(layer), norms[layer % len(norms)]
            # The codes start at 0, and attention on zeros is zero.
            z = self.correlation * attend(h, dictionary) if layer else h
            h = lista_step(x, z, dictionary, self.sparsity, c)
            visit(h @ dictionary.T)
