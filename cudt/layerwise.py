"""From a model and a task to the layer losses f_1 … f_L, and to the data that they are measured on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cudt import perturb
from cudt.models import LayeredModel
from cudt.tasks import Batch, Split, Task


@dataclass(frozen=True)
class NoiseSource:
    """Where noise comes from: ε(seed, id) of one kind, to be scaled by γ·σ_x."""

    kind: str
    sigma_x: float
    seed: int | str

    def draw(self, model: LayeredModel, batch: Batch) -> Tensor:
        """σ_x·ε for a batch; γ times this is its noise at level γ."""
        with torch.no_grad():
            return self.sigma_x * perturb.draw(self.kind, self.seed, batch, *model.signal(batch))


class LayerwiseLosses(nn.Module):
    """f(X, Φ_l(X + noise)) and the metric's scores for each example and layer.

    This is the module that Accelerate wraps: model, readout and loss in one forward pass, so that gradients
    are synchronised whatever the objective does with the losses.
    """

    def __init__(self, model: LayeredModel, task: Task) -> None:
        super().__init__()
        self.model = model
        self.task = task

    def forward(self, batch: Batch, noise: Tensor | None = None, last_only: bool = False) -> tuple[Tensor, Tensor]:
        """Losses and scores, each (layers, examples): all layers, or the last alone."""
        signal, _ = self.model.signal(batch)
        losses, scores = [], []
        for layer, state in enumerate(self.model.layer_states(signal if noise is None else signal + noise, batch), 1):
            if last_only and layer < self.model.n_layers:
                continue
            answer = self.model.readout(state, batch).float()
            losses.append(self.task.losses(answer, batch))
            with torch.no_grad():
                scores.append(self.task.scores(answer, batch))
        return torch.stack(losses), torch.stack(scores)


def to_device(batch: Batch, device: torch.device) -> Batch:
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}


def batches(task: Task, split: Split, size: int, device: torch.device) -> Iterator[Batch]:
    """A split in order."""
    examples = task.examples(split)
    for start in range(0, len(examples), size):
        yield to_device(task.collate(examples[start : start + size]), device)


@dataclass(frozen=True)
class Measurement:
    """Losses and scores of every example at every layer, (layers, examples), and how much each example counts."""

    losses: Tensor
    scores: Tensor
    weights: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Measurement]) -> Measurement:
        """The measurement of all the examples of the parts."""
        columns = ([part.losses, part.scores, part.weights] for part in parts)
        return cls(*(torch.cat(column, -1) for column in zip(*columns, strict=True)))

    @property
    def layer_losses(self) -> Tensor:
        """f_1 … f_L."""
        return self.losses @ self.weights / self.weights.sum()

    @property
    def layer_scores(self) -> Tensor:
        return self.scores @ self.weights / self.weights.sum()


@torch.no_grad()
def measure(
    layerwise: LayerwiseLosses, examples: Iterable[Batch], noise: NoiseSource, gammas: Sequence[float]
) -> list[Measurement]:
    """Every example's losses at each level γ, in double precision on the CPU; each draw serves all levels."""
    layerwise.eval()
    parts: list[list[Measurement]] = [[] for _ in gammas]
    for batch in examples:
        drawn = noise.draw(layerwise.model, batch) if any(gammas) else None
        weights = layerwise.task.weights(batch)
        for gamma, rows in zip(gammas, parts, strict=True):
            losses, scores = layerwise(batch, gamma * drawn if drawn is not None and gamma else None)
            rows.append(Measurement(*(part.double().cpu() for part in (losses, scores, weights))))
    return [Measurement.joined(rows) for rows in parts]
