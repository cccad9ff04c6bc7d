"""Shared by the video models: frames as sequences of patches, and a dictionary of cosines."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cudt.data.loader import Batch
from cudt.models.base import LayeredModel
from cudt.models.patch_section import check_patches
from cudt.noise import SignalShape
from cudt.tasks.video import VideoDenoising


def to_patches(frames: Tensor, side: int) -> Tensor:
    """(examples, T, height, width) to a sequence for each patch position: (examples · positions, T,
    side²).
    """
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
    pixels, frequencies = (
        torch.arange(side, dtype=torch.double),
        torch.arange(atoms, dtype=torch.double),
    )
    cosines = torch.cos(math.pi / atoms * pixels.unsqueeze(1) * frequencies)
    cosines[:, 1:] -= cosines[:, 1:].mean(0)
    cosines /= cosines.norm(dim=0)
    return torch.kron(cosines, cosines).float()


class PatchModel(LayeredModel):
    """A model whose layer states are patches of the reconstruction."""

    signal_is_learned = False

    def __init__(self, task: VideoDenoising, patch: int) -> None:
        super().__init__()
        check_patches(patch, task.height, task.width)
        self.patch = patch
        self.height, self.width = task.height, task.width

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return frames_of(batch)

    def signal_shape(self, batch: Batch) -> SignalShape:
        return frames_shape(batch)

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        return from_patches(state, self.patch, self.height, self.width)


def frames_shape(batch: Batch) -> SignalShape:
    """The shape of a batch of frames, in which no position is padding."""
    examples, length, *frame = batch["frames"].shape
    return SignalShape([length] * examples, length, tuple(frame))


def frames_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """The clean frames with values 0 to 255, and a mask in which no position is padding."""
    frames = batch["frames"].float()
    return frames, torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
