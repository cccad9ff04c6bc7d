"""The network of UT for video (unrolled_video.py has its equations)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cudt.data.loader import Batch
from cudt.models.base import Visit
from cudt.models.patches import PatchModel, overcomplete_dct, to_patches
from cudt.models.unrolled_steps import UnrolledLayer
from cudt.models.unrolled_video import Config
from cudt.tasks.video import PEAK, VideoDenoising


class UnrolledVideo(PatchModel):
    """L unrolled layers on patches of pixels from 0 to 1."""

    def __init__(self, config: Config, task: VideoDenoising) -> None:
        super().__init__(task, config.patch)
        self.n_layers = config.layers
        self.layer = UnrolledLayer(config.step_size)
        start = overcomplete_dct(config.patch, config.atoms)
        start = start.T / torch.linalg.matrix_norm(start, 2)
        depth = 1 if config.tie_layers else config.layers
        self.w1 = nn.ParameterList(nn.Parameter(start.clone()) for _ in range(depth))
        self.w2 = nn.ParameterList(nn.Parameter(-torch.eye(config.patch**2)) for _ in range(depth))

    def layer_weights(self, layer: int) -> tuple[Tensor, Tensor]:
        """W₁ and W₂ of a layer, counted from 0."""
        index = layer % len(self.w1)
        return self.w1[index], self.w2[index]

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        x = to_patches(signal, self.patch) / PEAK
        for layer in range(self.n_layers):
            w1, w2 = self.layer_weights(layer)
            x = self.layer(x, w1, w2)
            visit(PEAK * x)

    def layer_modules(self) -> list[nn.Module]:
        return [self.layer]
