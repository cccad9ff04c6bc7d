"""Losses and scores of every example at each level, in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cudt.data.loader import Batch
from cudt.models.layer_losses import LayerwiseLosses, Measurement, measure_batches
from cudt.noise import NoiseSource


def measure(
    layerwise: LayerwiseLosses,
    examples: Iterable[Batch],
    noise: NoiseSource,
    gammas: Sequence[float],
) -> list[Measurement]:
    batches = [*examples]
    return [
        Measurement.joined([*measure_batches(layerwise, batches, noise, gamma)]) for gamma in gammas
    ]
