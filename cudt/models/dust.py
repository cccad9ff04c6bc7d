"""DUST, the deep unfolded sequential transformer (Weerdt et al., 2023), which computes sparse codes
of video patches.

The codes h_1 … h_T of one patch position over T frames, in the rows of H, and a dictionary D whose
columns are atoms:

    Z  = λ₂·softmax(H DᵀD Hᵀ) H                                      attention: similar to a descent step on g₁(H Dᵀ)
    h⁺ = φ_{λ₁/c}(U z + V x),  U = I − DᵀD/c,  V = Dᵀ/c              a proximal gradient step on the LISTA loss
    Y  = H⁺ Dᵀ                                                       the reconstruction of the layer

φ is the soft threshold, and H starts at 0. Only D is trained: λ₁ and λ₂ are fixed, and U, V and c
depend on D. c = ‖D‖² is the Lipschitz constant of the LISTA loss's gradient, so that no step is too
long for the descent guarantee, however D is trained. Pixel values are 0 to 255, which sets the
scale of λ₁.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config import models as sections
from cudt.models.patch_section import check_sections, video_task

if TYPE_CHECKING:
    from cudt.models.dust_network import Dust
    from cudt.tasks.base import Task


Config = sections.Dust


#: Called before data are read.
check = check_sections


def build(config: Config, task: Task, data_root: Path | None) -> Dust:
    """A DUST for frames of the task's size."""
    from cudt.models.dust_network import Dust

    return Dust(config, video_task(task, config.name))
