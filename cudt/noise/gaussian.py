"""Gaussian noise: ε ~ N(0, 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudt.noise.base import SignalNoise

if TYPE_CHECKING:
    import torch


class Gaussian(SignalNoise):
    """ε ~ N(0, 1) for each entry of the signal."""

    draws_on_device = True

    def standard(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """Independent standard normal numbers."""
        import torch

        return torch.randn(tuple(shape), generator=generator, device=generator.device)


NOISE = Gaussian()
