"""The layer losses f_1 … f_L of a layered model on a task, for training and measurement."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cudt.data.loader import TOKEN_COUNTS, Batch
from cudt.models.base import LayeredModel
from cudt.models.sharding import like
from cudt.noise import CPU, NoiseSource
from cudt.tasks.base import Task
from cudt.utils.device import sent
from cudt.utils.errors import UserError

#: How many entries of each frozen weight go into its digest; hashing all of them takes long.
_DIGESTED = 256
Noise = Callable[[Tensor, Tensor], Tensor]
"""What is added to a clean signal, from the signal and the mask of its unpadded positions."""


@dataclass(frozen=True)
class Measurement:
    """Losses and scores of every example at every layer, (layers, examples)."""

    losses: Tensor
    scores: Tensor
    weights: Tensor
    ids: list[str]

    @property
    def layer_losses(self) -> Tensor:
        """f_1 … f_L: the weighted mean loss of each layer."""
        return self.losses @ self.weights / self.weights.sum()

    @property
    def layer_scores(self) -> Tensor:
        """The weighted mean score of each layer."""
        return self.scores @ self.weights / self.weights.sum()

    @classmethod
    def joined(cls, parts: Sequence[Measurement]) -> Measurement:
        """One measurement of the examples of all parts."""
        columns = ([part.losses, part.scores, part.weights] for part in parts)
        losses, scores, weights = (torch.cat(column, -1) for column in zip(*columns, strict=True))
        return cls(losses, scores, weights, [name for part in parts for name in part.ids])

    def grouped(self, names: Sequence[str]) -> Measurement:
        """One row for all examples of a name, with their weighted mean and their total weight, for
        standard errors over clips, whose windows resemble each other.
        """
        unique = sorted(set(names))
        numbers = {name: number for number, name in enumerate(unique)}
        index = torch.tensor([numbers[name] for name in names])
        weights = self.weights.new_zeros(len(unique)).index_add(0, index, self.weights)
        # The weights of a group can all be 0.
        least = torch.finfo(weights.dtype).tiny

        def means(values: Tensor) -> Tensor:
            sums = values.new_zeros(len(values), len(unique))
            return sums.index_add(1, index, values * self.weights) / weights.clamp_min(least)

        return Measurement(means(self.losses), means(self.scores), weights, unique)


class LayerwiseLosses(nn.Module):
    """f(X, Φ_l(X + noise)) for each example and layer, in one forward pass."""

    def __init__(self, model: LayeredModel, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(
        self,
        batch: Batch,
        noise: Noise | None = None,
        layers: Collection[int] | None = None,
        thinned: Batch | None = None,
        constant: Collection[int] = (),
    ) -> Tensor:
        """Training losses, (layers, examples), of all layers or of the given ones, in order.

        `thinned` is the batch with fewer labelled tokens, used for all layers but the last. The
        losses of `constant` layers have no gradient.
        """
        losses: list[Tensor] = []

        def read(layer: int, state: Tensor) -> None:
            if layers is not None and layer not in layers:
                return
            counted = batch if thinned is None or layer == self.model.n_layers else thinned
            with torch.set_grad_enabled(torch.is_grad_enabled() and layer not in constant):
                answer = self.model.readout(state, counted).float()
                losses.append(self.task.losses(answer, counted))

        self._visit(batch, noise, read)
        return torch.stack(losses)

    @torch.no_grad()
    def judge(self, batch: Batch, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """Losses and scores, each (layers, examples), in double precision and without gradients."""
        judged: list[tuple[Tensor, Tensor]] = []

        def read(layer: int, state: Tensor) -> None:
            # Floats round small losses to 0, which would spoil the per-example ratios of layers.
            judged.append(self.task.judge(self.model.readout(state, batch).double(), batch))

        self._visit(batch, noise, read)
        losses, scores = zip(*judged, strict=True)
        return torch.stack(losses), torch.stack(scores)

    def _visit(
        self, batch: Batch, noise: Noise | None, read: Callable[[int, Tensor], None]
    ) -> None:
        """Call `read` with each layer's number and state, which can be freed after that."""
        numbers = itertools.count(1)
        signal, mask = self.model.signal(batch)
        noisy = signal if noise is None else signal + noise(signal, mask)
        self.model.visit_layers(noisy, batch, lambda state: read(next(numbers), state))

    def learned_weights(self) -> dict[str, Tensor]:
        """The weights that training changes, each once; not those that LoRA freezes."""
        left_out = self._frozen_or_repeated()
        return {name: value for name, value in self.state_dict().items() if name not in left_out}

    def load_learned_weights(self, weights: dict[str, Tensor]) -> None:
        """Load what `learned_weights` returned; a UserError if they belong to another model."""
        own = self.state_dict()
        held = {name: like(one, own.get(name)) for name, one in weights.items()}
        missing, unexpected = self.load_state_dict(held, strict=False)
        absent = sorted(set(missing) - self._frozen_or_repeated())
        keys = [f"missing key '{name}'" for name in absent]
        keys += [f"unexpected key '{name}'" for name in unexpected]
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise UserError(f"checkpoint does not fit this model: {keys[0]}{more}")

    def frozen_digest(self) -> str:
        """A digest of the frozen weights, which no checkpoint has; empty if there are none."""
        frozen = [(name, one) for name, one in self.named_parameters() if not one.requires_grad]
        digest = hashlib.blake2b(digest_size=8)
        for name, weight in frozen:
            values = weight.detach().flatten()
            some = values[:: max(1, len(values) // _DIGESTED)].float().cpu()
            digest.update(f"{name} {tuple(weight.shape)}".encode() + some.numpy().tobytes())
        return digest.hexdigest() if frozen else ""

    def _frozen_or_repeated(self) -> set[str]:
        learned = {name for name, weight in self.named_parameters() if weight.requires_grad}
        return {name for name, _ in self.named_parameters(remove_duplicate=False)} - learned


@torch.no_grad()
def draw_noise(
    batch: Batch, signal: Tensor, mask: Tensor, noise: NoiseSource, device: torch.device = CPU
) -> Tensor:
    """σ_x·ε for the signal of a batch, drawn on a device; γ times this is the noise at level γ."""
    lengths = batch[TOKEN_COUNTS] if TOKEN_COUNTS in batch else mask.sum(1).tolist()
    return noise.draw(batch["ids"], lengths, signal.shape, signal.dtype, device)


@torch.no_grad()
def measure_sigma(model: LayeredModel, batches: Iterable[Batch]) -> float:
    """σ_x, the standard deviation of the clean signal over all unpadded positions."""
    with model.weights_outside_passes():
        signals = map(model.signal, batches)
        return deviation(signal[mask] for signal, mask in signals)


def deviation(parts: Iterable[Tensor]) -> float:
    """The standard deviation of all numbers of some tensors, in one pass."""
    count, total, squares = 0, 0.0, 0.0
    for part in parts:
        # Apple's GPUs have no double precision.
        values = (part.cpu() if part.device.type == "mps" else part).double()
        count += values.numel()
        total += values.sum().item()
        squares += values.square().sum().item()
    mean = total / count
    sigma = math.sqrt(max(squares / count - mean**2, 0.0))
    # The difference of two equal numbers is not always 0. Noise refuses a σ_x of 0 or NaN.
    return 0.0 if sigma <= 1e-6 * abs(mean) else sigma


@torch.no_grad()
def measure_batches(
    layerwise: LayerwiseLosses, examples: Iterable[Batch], noise: NoiseSource, gamma: float
) -> Iterator[Measurement]:
    """Each batch measured at level γ; the numbers are in double precision on the CPU."""
    layerwise.eval()
    for batch in examples:

        def added(signal: Tensor, mask: Tensor, batch: Batch = batch) -> Tensor:
            return gamma * sent(draw_noise(batch, signal, mask, noise), signal.device)

        losses, scores = layerwise.judge(batch, added if gamma else None)
        weights = layerwise.task.weights(batch).double()
        yield Measurement(losses.cpu(), scores.cpu(), weights.cpu(), [*batch["ids"]])
