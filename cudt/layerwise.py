"""From a model and a task to the layer losses f_1 … f_L."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cudt import intervals, perturb
from cudt.errors import UserError
from cudt.models import LayeredModel
from cudt.tasks import Batch, Task

#: Numbers of a weight that stand for all of it.
_DIGESTED = 256


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
    """f(X, Φ_l(X + noise)) for each example and layer.

    This is the module that Accelerate wraps: model, readout and loss in one forward pass, so that gradients
    are synchronised whatever the objective does with the losses.
    """

    def __init__(self, model: LayeredModel, task: Task) -> None:
        super().__init__()
        self.model = model
        self.task = task

    def forward(
        self,
        batch: Batch,
        noise: Tensor | None = None,
        layers: Collection[int] | None = None,
        thinned: Batch | None = None,
        constant: Collection[int] = (),
    ) -> Tensor:
        """Losses to train on, (layers, examples): of all layers, or of some, in order.

        `thinned` is the batch with fewer tokens that count, for all layers but the last. The losses of `constant`
        layers have no gradient, and are cheaper.
        """
        losses: list[Tensor] = []

        def read(layer: int, state: Tensor) -> None:
            if layers is None or layer in layers:
                counted = batch if thinned is None or layer == self.model.n_layers else thinned
                with torch.set_grad_enabled(torch.is_grad_enabled() and layer not in constant):
                    losses.append(self.task.losses(self.model.readout(state, counted).float(), counted))

        self._visit(batch, noise, read)
        return torch.stack(losses)

    @torch.no_grad()
    def judge(self, batch: Batch, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Losses and the metric's scores, each (layers, examples)."""
        judged: list[tuple[Tensor, Tensor]] = []

        def read(layer: int, state: Tensor) -> None:
            # Doubles tell small losses apart that floats round to 0: per-example ratios of layers depend on it.
            judged.append(self.task.judge(self.model.readout(state, batch).double(), batch))

        self._visit(batch, noise, read)
        losses, scores = zip(*judged, strict=True)
        return torch.stack(losses), torch.stack(scores)

    def learned_weights(self) -> dict[str, Tensor]:
        """What training changes, each once: not what is frozen, as pretrained weights are under LoRA."""
        left_out = self._frozen_or_repeated()
        return {name: value for name, value in self.state_dict().items() if name not in left_out}

    def load_learned_weights(self, weights: dict[str, Tensor]) -> None:
        missing, unexpected = self.load_state_dict(weights, strict=False)
        strange = [*unexpected, *(set(missing) - self._frozen_or_repeated())]
        if strange:
            raise UserError(
                f"these are the weights of another model: {strange[0]} is missing, or is not one of its own"
            )

    def frozen_digest(self) -> str:
        """Tells other frozen weights apart, which are not kept with what is learned; empty where there are none."""
        digest, found = hashlib.blake2b(digest_size=8), False
        for name, weight in self.named_parameters():
            if not weight.requires_grad:
                values, found = weight.detach().flatten(), True
                # Some of each: all of them would take long.
                some = values[:: max(1, len(values) // _DIGESTED)].float().cpu()
                digest.update(f"{name} {tuple(weight.shape)}".encode() + some.numpy().tobytes())
        return digest.hexdigest() if found else ""

    def _frozen_or_repeated(self) -> set[str]:
        learned = {name for name, weight in self.named_parameters() if weight.requires_grad}
        return {name for name, _ in self.named_parameters(remove_duplicate=False)} - learned

    def _visit(self, batch: Batch, noise: Tensor | None, read: Callable[[int, Tensor], None]) -> None:
        """Hand each layer's number and state to `read`; a state is not needed after that."""
        signal, _ = self.model.signal(batch)
        layers = itertools.count(1)
        noisy = signal if noise is None else signal + noise
        self.model.visit_layers(noisy, batch, lambda state: read(next(layers), state))


@dataclass(frozen=True)
class Measurement:
    """Losses and scores of every example at every layer, (layers, examples), how much each counts, and which it is."""

    losses: Tensor
    scores: Tensor
    weights: Tensor
    ids: list[str]

    @classmethod
    def joined(cls, parts: Sequence[Measurement]) -> Measurement:
        """The measurement of all the examples of the parts."""
        columns = ([part.losses, part.scores, part.weights] for part in parts)
        losses, scores, weights = (torch.cat(column, -1) for column in zip(*columns, strict=True))
        return cls(losses, scores, weights, [example_id for part in parts for example_id in part.ids])

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
            judged = layerwise.judge(batch, gamma * drawn if drawn is not None and gamma else None)
            losses, scores, counts = (part.double().cpu() for part in (*judged, weights))
            rows.append(Measurement(losses, scores, counts, [*batch["ids"]]))
    return [Measurement.joined(rows) for rows in parts]
