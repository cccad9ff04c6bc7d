"""Draws the noise of examples: ε per example, scaled to σ = γ·σ_x.

An example's draw depends only on (seed, example id): not on batch, order, device, number of processes, model or γ.
γ scales the same draw, so curves are paired across models and levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cudt.noise.base import signal_noise
from cudt.noise.seeding import example_seed


def example_generator(seed: int | str, example_id: str) -> torch.Generator:
    """The generator of one example, on the CPU so that every device gets the same draw."""
    return torch.Generator().manual_seed(example_seed(seed, example_id))


@dataclass(frozen=True)
class NoiseSource:
    """The noise of one kind and seed: σ_x·ε(seed, id), to be scaled by γ."""

    kind: str
    sigma_x: float
    seed: int | str

    def draw(self, ids: Sequence[str], signal: Tensor, mask: Tensor) -> Tensor:
        """σ_x·ε for a batch, with the shape and device of its clean signal, and 0 at padded positions.

        γ times this is the noise at level γ.
        """
        return self.sigma_x * standard_noise(self.kind, self.seed, ids, signal, mask)


def standard_noise(kind: str, seed: int | str, ids: Sequence[str], signal: Tensor, mask: Tensor) -> Tensor:
    """ε for a batch, with the shape and device of its clean signal; nothing is drawn for padded positions."""
    noise = signal_noise(kind)
    lengths = mask.sum(1).tolist()
    rows = [
        noise.standard((length, *signal.shape[2:]), example_generator(seed, example_id))
        for example_id, length in zip(ids, lengths, strict=True)
    ]
    padded = pad_sequence(rows, batch_first=True)
    missing = signal.shape[1] - padded.shape[1]
    padded = torch.nn.functional.pad(padded, [0, 0] * (padded.dim() - 2) + [0, missing])
    return padded.to(signal)
