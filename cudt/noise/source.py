"""Draws the noise of examples: ε per example, scaled to σ = γ·σ_x.

An example's draw depends only on (seed, example id): not on batch, order, number of processes,
model or γ. γ scales the same draw, so curves are paired across models and levels. Noise of
validation and test data is drawn on the CPU and is the same on every device. Training noise is
drawn by the generator of the device that trains, so that an accelerator does not wait for the CPU:
each kind of device has its own numbers. Kinds of noise that cannot draw on a device
(`draws_on_device`) are drawn on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cudt.noise.base import signal_noise
from cudt.noise.seeding import example_seed
from cudt.utils.errors import UserError
from cudt.utils.transfer import sent

CPU = torch.device("cpu")


@dataclass(frozen=True)
class SignalShape:
    """The shape of a batch's signal, (examples, positions, …), known before the signal is
    computed.
    """

    lengths: Sequence[int]
    """The number of unpadded positions of each example, which come before its padding."""
    positions: int
    features: tuple[int, ...]
    """The shape of the signal at one position."""
    dtype: torch.dtype = torch.float32


def example_generator(
    seed: int | str, example_id: str, device: torch.device = CPU
) -> torch.Generator:
    """The generator of one example."""
    return torch.Generator(device).manual_seed(example_seed(seed, example_id))


@dataclass(frozen=True)
class NoiseSource:
    """The noise of one kind and seed: σ_x·ε(seed, id), to be scaled by γ."""

    kind: str
    sigma_x: float
    seed: int | str

    def draw(self, ids: Sequence[str], shape: SignalShape, device: torch.device = CPU) -> Tensor:
        """σ_x·ε for a batch, drawn on a device, with the shape of its clean signal and 0 at padded
        positions.

        γ times this is the noise at level γ.
        """
        return usable(self.sigma_x) * standard_noise(self.kind, self.seed, ids, shape, device)


def usable(sigma_x: float) -> float:
    """σ_x, if noise of σ = γ·σ_x is any noise; otherwise every level γ would give the result of γ =
    0.
    """
    if math.isfinite(sigma_x) and sigma_x > 0:
        return sigma_x
    raise UserError(
        f"σ_x = {sigma_x:g}: the clean signal (pixels, or embeddings of tokens) is constant or "
        "not finite, so that "
        "noise of σ = γ·σ_x has no meaning; check the data and the pretrained weights, or use γ "
        "= 0 or discrete noise"
    )


def standard_noise(
    kind: str, seed: int | str, ids: Sequence[str], shape: SignalShape, device: torch.device = CPU
) -> Tensor:
    """ε for a batch, drawn on a device if the noise can; nothing is drawn for padding, and no
    device is waited for.
    """
    noise = signal_noise(kind)
    where = device if noise.draws_on_device else CPU
    drawn = torch.zeros(len(ids), shape.positions, *shape.features, dtype=shape.dtype, device=where)
    for row, example_id, length in zip(drawn, ids, shape.lengths, strict=True):
        row[:length] = noise.standard(
            (length, *shape.features), example_generator(seed, example_id, where)
        )
    return sent(drawn, device)
