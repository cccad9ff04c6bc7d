"""Shared by the video models: frames as sequences of patches, and a dictionary of cosines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from cudt.config.schema import Count, ModelSection, NamedSection
from cudt.data.batching import Batch
from cudt.models.base import LayeredModel
from cudt.tasks.base import Task
from cudt.tasks.video_denoising import VideoConfig, VideoDenoising
from cudt.utils.errors import UserError


class PatchConfig(ModelSection):
    """The settings of all models that split frames into patches."""

    layers: Count = 5
    """Number of layers L; the paper uses 3, 5 and 7."""
    patch: Annotated[int, Field(ge=2)] = 16
    """Side of a patch in pixels; the frame size must be a multiple of it."""
    atoms: Count = 24
    """Cosines along each side of a patch; its dictionary has atoms² columns."""
    tie_layers: bool = False
    """Whether all layers share one set of weights."""


def video_task(task: Task, model: str) -> VideoDenoising:
    """The task as a video task; a UserError for any other."""
    if not isinstance(task, VideoDenoising):
        raise _no_video(model)
    return task


def check_video(task: NamedSection, model: str) -> VideoConfig:
    """The task section as one of a video task; a UserError for any other."""
    if not isinstance(task, VideoConfig):
        raise _no_video(model)
    return task


def _no_video(model: str) -> UserError:
    return UserError(f"model {model} needs a video task: set task.name to ucsd, folder or another video task")


def check_patches(side: int, height: int, width: int) -> None:
    """Refuse a frame size that is not a multiple of the patch size."""
    if height % side or width % side:
        raise UserError(
            f"model.patch = {side}: frames of {width}×{height} pixels are not a multiple of the patch size; "
            "change task.size or model.patch"
        )


def check_sections(config: PatchConfig, task: NamedSection, data_root: Path | None) -> None:
    """Refuse a task without video, or with a frame size that is not a multiple of the patch size."""
    size = check_video(task, config.name).size
    check_patches(config.patch, size, size)


def to_patches(frames: Tensor, side: int) -> Tensor:
    """(examples, T, height, width) to a sequence for each patch position: (examples · positions, T, side²)."""
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

    The usual dictionary of sparse coding: cos(π·i·k/atoms) for pixel i and frequency k, minus its mean if k > 0, scaled
    to norm 1; in two dimensions, all products of a vertical and a horizontal cosine.
    """
    pixels, frequencies = torch.arange(side, dtype=torch.double), torch.arange(atoms, dtype=torch.double)
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

    def readout(self, state: Tensor, batch: Batch) -> Tensor:
        return from_patches(state, self.patch, self.height, self.width)


def frames_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """The clean frames with values 0 to 255, and a mask in which no position is padding."""
    frames = batch["frames"].float()
    return frames, torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
