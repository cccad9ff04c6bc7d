"""The layer losses f_1 … f_L of a layered model on a task, with noise, for training and for
measurement.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from cudt.config.schema import Precision
from cudt.data.loader import Batch
from cudt.models.base import LayeredModel
from cudt.models.sharding import like
from cudt.models.vocabulary import HeadGradient, TokenLogits
from cudt.noise import CPU, NoiseSource, SignalShape
from cudt.tasks.base import Task
from cudt.utils.device import sent
from cudt.utils.errors import UserError

#: How many entries of each frozen weight go into its digest; hashing all of them takes long.
_DIGESTED = 256
#: Threads of `_ahead`, and items that they prepare before these are asked for.
_AHEAD = 6
Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Measurement:
    """Losses and scores of every example at every layer, (layers, examples), with the examples'
    weights and ids.
    """

    losses: Tensor
    scores: Tensor
    weights: Tensor
    ids: list[str]
    input_scores: Tensor | None = None
    """The score of each example's noisy input, (examples,); None where the input is no answer."""

    @property
    def layer_losses(self) -> Tensor:
        """f_1 … f_L: the weighted mean loss of each layer."""
        return self.losses @ self.weights / self.weights.sum()

    @property
    def layer_scores(self) -> Tensor:
        """The weighted mean score of each layer."""
        return self.scores @ self.weights / self.weights.sum()

    @classmethod
    def of_rows(cls, rows: Sequence[Tensor], ids: list[str]) -> Measurement:
        """From losses, scores, one row of weights and, for some tasks, one of input scores."""
        losses, scores, weights, *inputs = rows
        return cls(losses, scores, weights[0], ids, inputs[0][0] if inputs else None)

    @classmethod
    def joined(cls, parts: Sequence[Measurement]) -> Measurement:
        """One measurement of the examples of all parts."""
        columns = ([part.losses, part.scores, part.weights] for part in parts)
        losses, scores, weights = (torch.cat(column, -1) for column in zip(*columns, strict=True))
        inputs = [part.input_scores for part in parts if part.input_scores is not None]
        ids = [example_id for part in parts for example_id in part.ids]
        return cls(losses, scores, weights, ids, torch.cat(inputs) if inputs else None)

    def grouped(self, names: Sequence[str]) -> Measurement:
        """One row for all examples of a name, with their weighted mean and their total weight.

        The means over all examples stay the same. Standard errors need it: the windows of a clip
        resemble each other, and an example with two noise seeds is still one example.
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
    """f(X, Φ_l(X + noise)) for each example and layer.

    Accelerate wraps this module: model, readout and loss are one forward pass, so gradients are
    synchronised whatever the objective does with the losses.
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
        announced: Tensor | None = None,
    ) -> Tensor:
        """Training losses, (layers, examples), of all layers or of the given ones, in order.

        `thinned` is the batch with fewer labelled tokens, used for all layers but the last. The
        losses of `constant` layers have no gradient, which is cheaper. `announced` is ∂J/∂losses up
        to a factor, if it is known: the gradient of a trained head over a vocabulary is then
        computed with the losses.
        """
        losses: list[Tensor] = []
        head = None if announced is None else HeadGradient(announced)

        def read(layer: int, state: Tensor) -> None:
            if layers is not None and layer not in layers:
                return
            counted = batch if thinned is None or layer == self.model.n_layers else thinned
            with torch.set_grad_enabled(torch.is_grad_enabled() and layer not in constant):
                answer = self.model.readout(state, counted).float()
                if head is not None and isinstance(answer, TokenLogits):
                    answer = answer.adding_to(head, len(losses))
                losses.append(self.task.losses(answer, counted))

        self._visit(batch, noise, read)
        return torch.stack(losses)

    @torch.no_grad()
    def judge(self, batch: Batch, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Losses and scores, each (layers, examples), in double precision and without gradients."""
        judged: list[tuple[Tensor, Tensor]] = []

        def read(layer: int, state: Tensor) -> None:
            # Floats round small losses to 0, which would spoil the per-example ratios of layers.
            judged.append(self.task.judge(self.model.readout(state, batch).double(), batch))

        self._visit(batch, noise, read)
        losses, scores = zip(*judged, strict=True)
        return torch.stack(losses), torch.stack(scores)

    @torch.no_grad()
    def input_scores(self, batch: Batch, noise: Tensor | None = None) -> Tensor | None:
        """The scores of the noisy signal itself as the answer; None where it is no answer."""
        if not self.task.input_is_answer:
            return None
        signal, _ = self.model.signal(batch)
        noisy = signal if noise is None else signal + noise
        return self.task.scores(noisy.double(), batch)

    def _visit(
        self, batch: Batch, noise: Tensor | None, read: Callable[[int, Tensor], None]
    ) -> None:
        """Call `read` with each layer's number and state, which can be freed after that."""
        layer = 0

        def visit(state: Tensor) -> None:
            nonlocal layer
            layer += 1
            read(layer, state)

        signal, _ = self.model.signal(batch)
        self.model.visit_layers(signal if noise is None else signal + noise, batch, visit)

    def learned_weights(self) -> dict[str, Tensor]:
        """The weights that training changes, each once; not those that LoRA freezes."""
        left_out = self._frozen_or_repeated()
        return {name: value for name, value in self.state_dict().items() if name not in left_out}

    def load_learned_weights(self, weights: dict[str, Tensor]) -> None:
        """Load what `learned_weights` returned; a UserError if they belong to another model."""
        own = self.state_dict()
        held = {name: like(one, own.get(name, one)) for name, one in weights.items()}
        missing, unexpected = self.load_state_dict(held, strict=False)
        absent = sorted(set(missing) - self._frozen_or_repeated())
        keys = [f"missing key '{name}'" for name in absent]
        keys += [f"unexpected key '{name}'" for name in unexpected]
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise UserError(f"checkpoint does not fit this model: {keys[0]}{more}")

    def frozen_digest(self) -> str:
        """A digest of the frozen weights, which checkpoints do not contain; empty if there are
        none.
        """
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
    model: LayeredModel, batch: Batch, noise: NoiseSource, device: torch.device = CPU
) -> Tensor:
    """σ_x·ε for the signal of a batch, drawn on a device; γ times this is the noise at level γ."""
    return noise.draw(batch["ids"], model.signal_shape(batch), device)


def with_noise(
    model: LayeredModel, examples: Iterable[Batch], noise: NoiseSource | None
) -> Iterator[tuple[Batch, Tensor | None]]:
    """Each batch with σ_x·ε for its signal, or None without noise; drawn on the CPU, ahead of an
    accelerator.
    """
    device = next(model.parameters()).device

    def draw(item: tuple[Batch, SignalShape | None]) -> tuple[Batch, Tensor | None]:
        batch, shape = item
        if noise is None or shape is None:
            return batch, None
        return batch, sent(noise.draw(batch["ids"], shape), device)

    shaped = ((batch, None if noise is None else model.signal_shape(batch)) for batch in examples)
    return _ahead(shaped, draw, device)


@torch.no_grad()
def measure_sigma(model: LayeredModel, batches: Iterable[Batch]) -> float:
    """σ_x, the standard deviation of the clean signal over all unpadded positions, in one pass."""
    count, total, squares, sums = 0, 0.0, 0.0, []
    with model.weights_outside_passes():
        for batch in batches:
            signal, lengths = model.signal(batch)[0], model.signal_shape(batch).lengths
            rows = zip(signal, lengths, strict=True)
            values = torch.cat([row[:length] for row, length in rows]).double()
            count += values.numel()
            sums.append(torch.stack([values.sum(), values.square().sum()]))
    # Read once all batches are on their way, so that the device is waited for once.
    for one, squared in torch.stack(sums).tolist():
        total, squares = total + one, squares + squared
    mean = total / count
    sigma = math.sqrt(max(squares / count - mean**2, 0.0))
    # The difference of two equal numbers is not always 0. Noise refuses a σ_x of 0 or NaN.
    return 0.0 if sigma <= 1e-6 * abs(mean) else sigma


@torch.no_grad()
def measure_batches(
    layerwise: LayerwiseLosses,
    examples: Iterable[Batch],
    noise: NoiseSource | None,
    gammas: Sequence[float],
    precision: Precision = "fp32",
) -> Iterator[list[Measurement]]:
    """Each batch measured at each level γ; the numbers are in double precision on the CPU.

    All levels share one draw, and the device is waited for once per batch. `precision` is that of
    the model's forward pass.
    """
    device = next(layerwise.eval().parameters()).device
    for batch, drawn in with_noise(layerwise.model, examples, noise if any(gammas) else None):
        weights = sent(layerwise.task.weights(batch).double(), device)
        levels = []
        for gamma in gammas:
            scaled = gamma * drawn if drawn is not None and gamma else None
            # Not around the loop: autocast would stay on in the caller, between two batches.
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                rows = [*layerwise.judge(batch, scaled), weights.unsqueeze(0)]
            inputs = layerwise.input_scores(batch, scaled)
            levels.append(rows if inputs is None else [*rows, inputs.unsqueeze(0)])
        sizes = [len(rows) for rows in levels[0]]
        on_cpu = torch.stack([torch.cat(rows) for rows in levels]).cpu()
        yield [Measurement.of_rows(rows.split(sizes), [*batch["ids"]]) for rows in on_cpu]


def _ahead(
    items: Iterable[Item], prepare: Callable[[Item], Made], device: torch.device
) -> Iterator[Made]:
    """`prepare(item)` of each item, in order; for an accelerator, by six threads that are six items
    ahead.

    torch's random numbers are drawn without holding Python's lock, so the threads do not hold up
    this one. The items are made by this thread: they may need the model, which others must not run
    at the same time.
    """
    if device.type == "cpu":
        yield from map(prepare, items)
        return
    remaining = iter(items)
    with ThreadPoolExecutor(_AHEAD, "ahead") as threads:
        waiting = deque(
            threads.submit(prepare, item) for item in itertools.islice(remaining, _AHEAD)
        )
        while waiting:
            waiting.extend(threads.submit(prepare, item) for item in itertools.islice(remaining, 1))
            yield waiting.popleft().result()
