"""From a model and a task to the layer losses f_1 … f_L."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cudt import intervals, perturb
from cudt.models import LayeredModel
from cudt.tasks import Batch, Task


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
        losses: list[Tensor] = []
        scores: list[Tensor] = []
        layers = itertools.count(1)

        def read(state: Tensor) -> None:
            """Losses and scores of one layer; its state is not needed after that."""
            if next(layers) < self.model.n_layers and last_only:
                return
            answer = self.model.readout(state, batch)
            # Doubles tell small losses apart that floats round to 0: per-example ratios of layers depend on it.
            answer = answer.float() if self.training else answer.double()
            losses.append(self.task.losses(answer, batch))
            with torch.no_grad():
                scores.append(self.task.scores(answer, batch))

        self.model.visit_layers(signal if noise is None else signal + noise, batch, read)
        return torch.stack(losses), torch.stack(scores)


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

    def interval(self, values: Tensor) -> tuple[float, float]:
        """The 95 % interval of the mean of one value for each example."""
        return intervals.bootstrap(values, self.weights)


@torch.no_grad()
def measure(
    layerwise: LayerwiseLosses, examples: Iterable[Batch], noise: NoiseSource | None, gammas: Sequence[float]
) -> list[Measurement]:
    """Every example's losses at each level γ, in double precision on the CPU; each draw serves all levels."""
    layerwise.eval()
    parts: list[list[Measurement]] = [[] for _ in gammas]
    for batch in examples:
        drawn = noise.draw(layerwise.model, batch) if noise is not None and any(gammas) else None
        weights = layerwise.task.weights(batch)
        for gamma, rows in zip(gammas, parts, strict=True):
            losses, scores = layerwise(batch, gamma * drawn if drawn is not None and gamma else None)
            rows.append(Measurement(*(part.double().cpu() for part in (losses, scores, weights))))
    return [Measurement.joined(rows) for rows in parts]
