"""UT, the unrolled transformer, for video: the layers of unrolled.py on patches of pixels instead
of words.

The rows of X are the patches x_1 … x_T of one position over T frames; a layer's state is its
reconstruction.

    Z  = softmax(Y Yᵀ) X,  Y = X W₁ᵀ
    X⁺ = ReLU(Z W_s),  W_s = (1−η)I − (η/2)(W₂ + W₂ᵀ)

Weights start from cosines, like DUST's: W₁ = Dᵀ/‖D‖ with the overcomplete dictionary D, so
attention compares patches by their cosine coefficients, and W₂ = −BBᵀ = −I with an orthonormal
basis B of cosines, so W_s = I and a layer first passes on the output of attention. Pixel values are
scaled to 0 to 1: with 0 to 255 the products in attention would be in the millions, and the softmax
would select a single frame instead of averaging.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config import models as sections
from cudt.models.patch_section import check_sections, video_task

if TYPE_CHECKING:
    from cudt.models.unrolled_video_network import UnrolledVideo
    from cudt.tasks.base import Task


Config = sections.UnrolledVideo


#: Called before data are read.
check = check_sections


def build(config: Config, task: Task, data_root: Path | None) -> UnrolledVideo:
    """A UT for frames of the task's size."""
    from cudt.models.unrolled_video_network import UnrolledVideo

    return UnrolledVideo(config, video_task(task, config.name))
