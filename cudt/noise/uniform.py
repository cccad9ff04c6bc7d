"""Uniform noise: ε ~ U(−√3, √3), which has variance 1 like the Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudt.noise.base import SignalNoise

if TYPE_CHECKING:
    import torch


class Uniform(SignalNoise):
    """ε ~ U(−√3, √3) for each entry of the signal."""

    draws_on_device = True

    def standard(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """Independent uniform numbers."""
        import torch

        drawn = torch.rand(tuple(shape), generator=generator, device=generator.device)
        return (2 * drawn - 1) * math.sqrt(3)


NOISE = Uniform()
