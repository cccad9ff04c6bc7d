"""UT, the unrolled transformer, for video: the layers of unrolled.py on patches of pixels instead of words.

The rows of X are the patches x_1 … x_T of one position over T frames; a layer's state is its reconstruction.

    Z  = softmax(Y Yᵀ) X,  Y = X W₁ᵀ
    X⁺ = ReLU(Z W_s),  W_s = (1−η)I − (η/2)(W₂ + W₂ᵀ)

Weights start from cosines, like DUST's: W₁ = Dᵀ/‖D‖ with the overcomplete dictionary D, so attention compares patches
by their cosine coefficients, and W₂ = −BBᵀ = −I with an orthonormal basis B of cosines, so W_s = I and a layer first
passes on the output of attention. Pixel values are scaled to 0 to 1: with 0 to 255 the products in attention would be
in the millions, and the softmax would select a single frame instead of averaging.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from cudt.data.batching import Batch
from cudt.models.base import Visit
from cudt.models.patches import PatchConfig, PatchModel, check_sections, overcomplete_dct, to_patches, video_task
from cudt.models.unrolled_steps import attend, relu_step
from cudt.tasks.base import Task
from cudt.tasks.video_denoising import PEAK, VideoDenoising


class Config(PatchConfig):
    """The size of a UT for video; attention compares atoms² cosine coefficients."""

    step_size: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Step size η of a layer."""


class UnrolledVideo(PatchModel):
    """L unrolled layers on patches of pixels from 0 to 1."""

    def __init__(self, config: Config, task: VideoDenoising) -> None:
        super().__init__(task, config.patch)
        self.n_layers = config.layers
        self.step_size = config.step_size
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
            x = relu_step(attend(x, w1), w2, self.step_size)
            visit(PEAK * x)


#: Called before data are read.
check = check_sections


def build(config: Config, task: Task, data_root: Path | None) -> UnrolledVideo:
    """A UT for frames of the task's size."""
    return UnrolledVideo(config, video_task(task, config.name))
