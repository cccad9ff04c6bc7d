"""One pass over the examples of a split: a description that is sent to every process, which then
reads its batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudt.config.schema import Recipe
from cudt.data.batching import Batch, n_batches
from cudt.data.loading import Share, Workers, batches
from cudt.data.splits import Split
from cudt.models.layer_losses import LayerwiseLosses, Measurement, measure_batches
from cudt.noise import NoiseSource, TextNoise, noise_kind
from cudt.tasks.base import Task
from cudt.utils.autocast import Precision


@dataclass
class Pass:
    """The examples of a split in batches, with the noise to add to their signal at some levels."""

    split: Split
    size: int
    workers: Workers
    precision: Precision
    """That of the model's forward pass."""
    noise: NoiseSource | None = None
    levels: Sequence[float] = (0.0,)
    corrupted: tuple[str, float, int] | None = None
    """Noise in the source texts instead: its kind, level and seed."""
    only: Sequence[int] | None = None
    """The indices of the examples to read; None reads all."""
    _examples: Sequence[Any] | None = field(default=None, init=False)

    def examples(self, task: Task) -> Sequence[Any]:
        """The examples; texts are corrupted once."""
        if self._examples is None:
            found = task.examples(self.split)
            if self.corrupted is not None:
                kind, level, seed = self.corrupted
                noise = noise_kind(kind)
                assert isinstance(noise, TextNoise)
                found = task.corrupted(self.split, noise, level, seed)
            self._examples = found if self.only is None else [found[index] for index in self.only]
        return self._examples

    def total(self, task: Task) -> int:
        """The number of batches."""
        return n_batches(self.examples(task), self.size)

    def batches(self, layerwise: LayerwiseLosses, share: Share) -> Iterator[Batch]:
        """The batches of one process."""
        device = next(layerwise.parameters()).device
        return batches(
            layerwise.task, self.examples(layerwise.task), self.size, device, self.workers, share
        )

    def __getstate__(self) -> dict[str, Any]:
        # Every process has the data.
        return {**self.__dict__, "_examples": None}


class Measuring(Pass):
    """A pass that measures losses and scores of every example at every layer."""

    def __call__(self, layerwise: LayerwiseLosses, share: Share) -> Iterator[list[Measurement]]:
        """The measurements of each batch of one process, one for each level."""
        return measure_batches(
            layerwise, self.batches(layerwise, share), self.noise, self.levels, self.precision
        )


def loading(settings: Recipe) -> tuple[int, Workers, Precision]:
    """How a pass reads its examples: the size of batches, the number of workers, and the model's
    precision.
    """
    return settings.evaluation.batch_size, settings.loading.workers, settings.evaluation.precision
