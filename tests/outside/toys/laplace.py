"""A noise: Laplace's, of variance 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cudt.noise import SignalNoise


class Laplace(SignalNoise):
    """ε ~ Laplace(0, 1/√2)."""

    def standard(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """The inverse of the distribution function, of uniform numbers."""
        uniform = torch.rand(tuple(shape), generator=generator, device=generator.device) - 0.5
        return -uniform.sign() * (1 - 2 * uniform.abs()).clamp_min(1e-12).log() / math.sqrt(2)


NOISE = Laplace()
