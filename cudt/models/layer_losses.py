"""From a model and a task to the layer losses f_1 … f_L."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor, nn

from cudt.data.batching import Batch
from cudt.method.measurement import Measurement
from cudt.models.base import LayeredModel
from cudt.noise.source import NoiseSource
from cudt.tasks.base import Task
from cudt.utils.errors import UserError

#: Numbers of a weight that stand for all of it.
_DIGESTED = 256


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


@torch.no_grad()
def draw_noise(model: LayeredModel, batch: Batch, noise: NoiseSource) -> Tensor:
    """σ_x·ε for the signal of a batch; γ times this is its noise at level γ."""
    return noise.draw(batch["ids"], *model.signal(batch))


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


@torch.no_grad()
def measure(
    layerwise: LayerwiseLosses, examples: Iterable[Batch], noise: NoiseSource | None, gammas: Sequence[float]
) -> list[Measurement]:
    """Every example's losses at each level γ, in double precision on the CPU; each draw serves all levels."""
    layerwise.eval()
    parts: list[list[Measurement]] = [[] for _ in gammas]
    for batch in examples:
        drawn = draw_noise(layerwise.model, batch, noise) if noise is not None and any(gammas) else None
        weights = layerwise.task.weights(batch)
        for gamma, rows in zip(gammas, parts, strict=True):
            judged = layerwise.judge(batch, gamma * drawn if drawn is not None and gamma else None)
            losses, scores, counts = (part.double().cpu() for part in (*judged, weights))
            rows.append(Measurement(losses, scores, counts, [*batch["ids"]]))
    return [Measurement.joined(rows) for rows in parts]
