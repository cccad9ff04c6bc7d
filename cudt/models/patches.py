"""What the video models share: frames as sequences of patches, and a dictionary of cosines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from cudt.config.models import PatchSection
from cudt.config.schema import NamedSection
from cudt.config.tasks import VideoSection
from cudt.data.loader import Batch
from cudt.models.base import LayeredModel
from cudt.noise import SignalShape
from cudt.tasks.base import Task
from cudt.tasks.video import VideoDenoising
from cudt.utils.errors import UserError

Kind = TypeVar("Kind")


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
        return frames, torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)

    def signal_shape(self, batch: Batch) -> SignalShape:
        examples, length, *frame = batch["frames"].shape
        return SignalShape([length] * examples, length, tuple(frame))


class PatchModel(FrameModel):
    """A model whose layer states are patches of the reconstruction."""

    def __init__(self, config: PatchSection, task: Task) -> None:
        super().__init__()
        frames = video(task, VideoDenoising, config.name)
        _check_size(config.patch, frames.height, frames.width)
        self.n_layers = config.layers
        self.patch = config.patch
        self.height, self.width = frames.height, frames.width

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        return from_patches(state, self.patch, self.height, self.width)


def video(given: object, kind: type[Kind], model: str) -> Kind:
    """A task as a video task, or its section as one of video; a UserError for any other."""
    if not isinstance(given, kind):
        raise UserError(
            f"model {model} needs a video task: set task.name to ucsd, folder or another video task"
        )
    return given


def check_patches(config: PatchSection, task: NamedSection, data_root: Path | None) -> None:
    """Refuse a task without video, or with frames that are not a multiple of the patch size."""
    size = video(task, VideoSection, config.name).size
    _check_size(config.patch, size, size)


def _check_size(side: int, height: int, width: int) -> None:
    if height % side or width % side:
        raise UserError(
            f"model.patch = {side}: frames of {width}×{height} pixels are not a multiple of the "
            "patch size; change task.size or model.patch"
        )
