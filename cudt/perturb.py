"""Noise: ε drawn per example, scaled to σ = γ·σ_x.

An example's draw depends on (seed, example id) alone: not on the batch, the order, the device, the number of
processes, the model or γ. γ scales one and the same draw, so that curves are paired across models and levels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cudt.models import LayeredModel
from cudt.seeding import example_seed
from cudt.tasks import Batch


def example_generator(seed: int | str, example_id: str) -> torch.Generator:
    """A generator of its own for each (seed, example id), on the CPU so that every device sees the same draw."""
    return torch.Generator().manual_seed(example_seed(seed, example_id))


def standard_noise(kind: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """ε with mean 0 and variance 1: N(0, 1), or U(−√3, √3)."""
    if kind == "gaussian":
        return torch.randn(tuple(shape), generator=generator)
    if kind == "uniform":
        return (2 * torch.rand(tuple(shape), generator=generator) - 1) * math.sqrt(3)
    raise ValueError(f"unknown noise {kind!r}")


def draw(kind: str, seed: int | str, batch: Batch, signal: Tensor, mask: Tensor) -> Tensor:
    """ε for a batch, shaped and placed like its clean signal; nothing is drawn for padded positions."""
    lengths = mask.sum(1).tolist()
    rows = [
        standard_noise(kind, (length, *signal.shape[2:]), example_generator(seed, example_id))
        for example_id, length in zip(batch["ids"], lengths, strict=True)
    ]
    padded = pad_sequence(rows, batch_first=True)
    missing = signal.shape[1] - padded.shape[1]
    padded = torch.nn.functional.pad(padded, [0, 0] * (padded.dim() - 2) + [0, missing])
    return padded.to(signal)


@torch.no_grad()
def measure_sigma(model: LayeredModel, batches: Iterable[Batch]) -> float:
    """σ_x, the standard deviation of the clean signal over all real positions, in one pass."""
    count, total, squares = 0, 0.0, 0.0
    for batch in batches:
        signal, mask = model.signal(batch)
        values = signal[mask].double()
        count += values.numel()
        total += values.sum().item()
        squares += values.square().sum().item()
    mean = total / count
    return math.sqrt(max(squares / count - mean**2, 0.0))
