"""The layer losses f_1 … f_L of a layered model on a task, with noise, for training and for
measurement.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from cudt.data.loader import Batch, ahead
from cudt.method.measurement import Measurement
from cudt.models.base import LayeredModel
from cudt.models.sharding import like
from cudt.noise import CPU, NoiseSource, SignalShape
from cudt.tasks.base import Task
from cudt.tasks.head_gradient import HeadGradient
from cudt.tasks.token_logits import TokenLogits
from cudt.utils.autocast import Precision, computing_in
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.transfer import sent

#: How many entries of each frozen weight go into its digest.
_DIGESTED = 256


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
            if layers is None or layer in layers:
                counted = batch if thinned is None or layer == self.model.n_layers else thinned
                with torch.set_grad_enabled(torch.is_grad_enabled() and layer not in constant):
                    answer = self.model.readout(state, counted).float()
                    if head is not None and isinstance(answer, TokenLogits):
                        answer = answer.adding_to(head, len(losses))
                    losses.append(self.task.losses(answer, counted))

        self._visit(batch, noise, read)
        stacked = torch.stack(losses)
        return stacked if head is None else head.attach(stacked)

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
        """The scores of the noisy signal itself as the answer; None for tasks where it is no
        answer.
        """
        if not self.task.input_is_answer:
            return None
        signal, _ = self.model.signal(batch)
        noisy = signal if noise is None else signal + noise
        return self.task.scores(noisy.double(), batch)

    def learned_weights(self) -> dict[str, Tensor]:
        """The weights that training changes, each once; without frozen ones, such as pretrained
        weights under LoRA.
        """
        left_out = self._frozen_or_repeated()
        return {name: value for name, value in self.state_dict().items() if name not in left_out}

    def load_learned_weights(self, weights: dict[str, Tensor]) -> None:
        """Load what `learned_weights` returned; a UserError if the weights belong to another
        model.
        """
        own = self.state_dict()
        held = {
            name: like(value, own[name]) if name in own else value
            for name, value in weights.items()
        }
        missing, unexpected = self.load_state_dict(held, strict=False)
        absent = sorted(set(missing) - self._frozen_or_repeated())
        problems = [f"missing key '{name}'" for name in absent] + [
            f"unexpected key '{name}'" for name in unexpected
        ]
        if problems:
            more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
            raise UserError(f"checkpoint does not fit this model: {problems[0]}{more}")

    def frozen_digest(self) -> str:
        """A digest of the frozen weights, which checkpoints do not contain; empty if there are
        none.
        """
        frozen = [
            (name, weight) for name, weight in self.named_parameters() if not weight.requires_grad
        ]
        return weights_digest(frozen) if frozen else ""

    def _frozen_or_repeated(self) -> set[str]:
        learned = {name for name, weight in self.named_parameters() if weight.requires_grad}
        return {name for name, _ in self.named_parameters(remove_duplicate=False)} - learned

    def _visit(
        self, batch: Batch, noise: Tensor | None, read: Callable[[int, Tensor], None]
    ) -> None:
        """Call `read` with each layer's number and state, which can be freed after that."""
        signal, _ = self.model.signal(batch)
        layers = itertools.count(1)
        noisy = signal if noise is None else signal + noise
        self.model.visit_layers(noisy, batch, lambda state: read(next(layers), state))


def weights_digest(weights: Iterable[tuple[str, Tensor]]) -> str:
    """A digest of named weights."""
    digest = hashlib.blake2b(digest_size=8)
    for name, weight in weights:
        values = weight.detach().flatten()
        # A sample of each weight, because hashing all of them takes long.
        some = values[:: max(1, len(values) // _DIGESTED)].float().cpu()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()


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
        return batch, None if noise is None or shape is None else sent(
            noise.draw(batch["ids"], shape), device
        )

    shaped = ((batch, None if noise is None else model.signal_shape(batch)) for batch in examples)
    return ahead(shaped, draw, device)


@torch.no_grad()
def measure_sigma(model: LayeredModel, batches: Iterable[Batch]) -> float:
    """σ_x, the standard deviation of the clean signal over all unpadded positions, in one pass."""
    count, total, squares, sums = 0, 0.0, 0.0, []
    with model.weights_outside_passes():
        for batch in batches:
            signal, lengths = model.signal(batch)[0], model.signal_shape(batch).lengths
            values = torch.cat(
                [row[:length] for row, length in zip(signal, lengths, strict=True)]
            ).double()
            count += values.numel()
            sums.append(torch.stack([values.sum(), values.square().sum()]))
    # Read once all batches are on their way, so that the device is waited for once.
    for one, squared in torch.stack(sums).tolist():
        total, squares = total + one, squares + squared
    mean = total / count
    if not math.isfinite(squares):
        raise UserError(
            "σ_x is not finite: the clean signal (pixels, or embeddings of tokens) has NaN or "
            "infinite values; check "
            "the data and the pretrained weights"
        )
    sigma = math.sqrt(max(squares / count - mean**2, 0.0))
    # The difference of two equal numbers is not always 0.
    if sigma > 1e-6 * abs(mean):
        return sigma
    warnings.warn(
        "σ_x = 0: the clean signal (pixels, or embeddings of tokens) is constant, so only γ = 0 "
        "and discrete noise can "
        "be evaluated; check the data and the pretrained weights",
        DataWarning,
        stacklevel=2,
    )
    return 0.0


def measure(
    layerwise: LayerwiseLosses,
    examples: Iterable[Batch],
    noise: NoiseSource | None,
    gammas: Sequence[float],
) -> list[Measurement]:
    """Losses and scores of every example at each level γ, in double precision on the CPU; all
    levels share one draw.
    """
    parts = zip(*measure_batches(layerwise, examples, noise, gammas), strict=True)
    return [Measurement.joined(rows) for rows in parts]


@torch.no_grad()
def measure_batches(
    layerwise: LayerwiseLosses,
    examples: Iterable[Batch],
    noise: NoiseSource | None,
    gammas: Sequence[float],
    precision: Precision = "fp32",
) -> Iterator[list[Measurement]]:
    """The same, one batch at a time: a measurement at each level; the device is waited for once per
    batch.

    `precision` is that of the model's forward pass.
    """
    device = next(layerwise.eval().parameters()).device
    for batch, drawn in with_noise(layerwise.model, examples, noise if any(gammas) else None):
        weights = sent(layerwise.task.weights(batch).double(), device)
        levels = []
        for gamma in gammas:
            scaled = gamma * drawn if drawn is not None and gamma else None
            inputs = layerwise.input_scores(batch, scaled)
            # Not around the loop: autocast would stay on in the caller, between two batches.
            with computing_in(precision, device):
                rows = [*layerwise.judge(batch, scaled), weights.unsqueeze(0)]
            levels.append(torch.cat(rows if inputs is None else [*rows, inputs.unsqueeze(0)]))
        yield [
            _measurement(rows, batch, layerwise.model.n_layers)
            for rows in torch.stack(levels).cpu()
        ]


def _measurement(rows: Tensor, batch: Batch, n_layers: int) -> Measurement:
    """Losses and scores of each layer, weights, and the scores of the input if it has any, each in
    a row.
    """
    losses, scores, (weights, *inputs) = rows.split([n_layers, n_layers, len(rows) - 2 * n_layers])
    return Measurement(losses, scores, weights, [*batch["ids"]], inputs[0] if inputs else None)
