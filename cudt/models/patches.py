"""What the video models share: frames as sequences of patches, and a dictionary of cosines."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cudt.config.models import PatchSection
from cudt.data.loader import Batch
from cudt.models.base import LayeredModel
from cudt.tasks.base import Task
from cudt.tasks.video import VideoDenoising
from cudt.utils.errors import UserError


def to_patches(frames: Tensor, side: int) -> Tensor:
    """(examples, T, height, width) to sequences of patches, (examples · positions, T, side²)."""
    examples, length, height, width = frames.shape
    grid = frames.reshape(examples, length, height // side, side, width // side, side)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(-1, length, side * side)


def from_patches(patches: Tensor, side: int, height: int, width: int) -> Tensor:
    """The inverse of `to_patches`."""
    rows, columns, length = height // side, width // side, patches.shape[1]
    grid = patches.reshape(-1, rows, columns, length, side, side)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(-1, length, height, width)


def overcomplete_dct(side: int, atoms: int) -> Tensor:
    """`atoms`² cosines for patches of side × side pixels as the columns of D, (side², atoms²).

    The usual dictionary of sparse coding: cos(π·i·k/atoms) for pixel i and frequency k, minus its
    mean if k > 0, scaled to norm 1; in two dimensions, all products of a vertical and a horizontal
    cosine.
    """
    pixels = torch.arange(side, dtype=torch.double).unsqueeze(1)
    cosines = torch.cos(math.pi / atoms * pixels * torch.arange(atoms, dtype=torch.double))
    cosines[:, 1:] -= cosines[:, 1:].mean(0)
    cosines /= cosines.norm(dim=0)
    return torch.kron(cosines, cosines).float()


class FrameModel(LayeredModel):
    """A model whose signal is the clean frames with values 0 to 255, without padding."""

    signal_is_learned = False

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        frames = batch["frames"].float()
        # On the CPU, which counts the positions of each example.
        return frames, torch.ones(frames.shape[:2], dtype=torch.bool)


class PatchModel(FrameModel):
    """A model whose layer states are patches of the reconstruction."""

    def __init__(self, config: PatchSection, task: Task) -> None:
        super().__init__()
        self.height, self.width = frame_size(task)
        if self.height % config.patch or self.width % config.patch:
            raise UserError(
                f"model.patch = {config.patch}: frames of {self.width}×{self.height} pixels are "
                "not a multiple of the patch size; change task.size or model.patch"
            )
        self.n_layers = config.layers
        self.patch = config.patch

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        return from_patches(state, self.patch, self.height, self.width)


def frame_size(task: Task) -> tuple[int, int]:
    """Height and width of a video task's frames; a UserError for any other task."""
    if not isinstance(task, VideoDenoising):
        raise UserError(
            "this model needs a video task: set task.name to ucsd, folder or another video task"
        )
    return task.height, task.width
