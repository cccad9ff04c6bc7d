"""What an accelerator waits for because of noise, as a share of its step.

There is none here, so its step takes the time that an A100 would need at its peak (312 TFLOP/s in bf16), which no model
reaches: the real share is smaller. Training noise is drawn on the device, and what is left for the CPU is to launch
kernels: measured on torch's `meta` device, which launches and computes nothing. Test noise is drawn on the CPU by six
threads, while the device computes on the batches before, at every level of an evaluation or at the single level of a
validation: what is left is the CPU time of the main thread, and what a sixth of a draw takes longer than the step (so
the threads need six cores). Of old, both were drawn on the CPU between two steps. The clock is the
CPU time of a thread, so that other processes do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.speed.bench import Bench, Outcome, Setting
from cudt.data.loading import AHEAD
from cudt.models import layer_losses
from cudt.models.base import LayeredModel
from cudt.noise import source
from cudt.noise.source import NoiseSource, SignalShape

PEAK = 312e12
#: Levels of the default grid of texts.
LEVELS = 15
ROUNDS = 5
META = torch.device("meta")


@dataclass(frozen=True)
class Size:
    """A batch, and what computing on it costs: RoBERTa-large in full, and Llama of 8 billion weights with LoRA."""

    name: str
    examples: int
    tokens: int
    width: int
    weights: float
    """Those of the layers, which every token is multiplied with."""
    training: int
    """FLOPs per weight and token of an update: 6, or 4 where the gradients of frozen weights are left out."""

    @property
    def shape(self) -> SignalShape:
        return SignalShape([self.tokens] * self.examples, self.tokens, (self.width,))

    @property
    def ids(self) -> list[str]:
        return [str(number) for number in range(self.examples)]

    def seconds(self, per_weight: float) -> float:
        return per_weight * self.weights * self.examples * self.tokens / PEAK


SIZES = (Size("32×512×1024", 32, 512, 1024, 3.0e8, 6), Size("4×512×4096", 4, 512, 4096, 8.0e9, 4))


def old_noise(ids: Sequence[str], signal: Tensor, mask: Tensor) -> Tensor:
    """The loop as it was: every example on the CPU, padded, copied; the mask is read from the device."""
    rows = [
        torch.randn((length, *signal.shape[2:]), generator=source.example_generator(0, name))
        for name, length in zip(ids, mask.sum(1).tolist(), strict=True)
    ]
    padded = pad_sequence(rows, batch_first=True)
    missing = signal.shape[1] - padded.shape[1]
    return 0.5 * torch.nn.functional.pad(padded, [0, 0] * (padded.dim() - 2) + [0, missing]).to(signal)


class _Launches:
    """Gaussian noise on the meta device."""

    draws_on_device = True

    def standard(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return torch.randn(tuple(shape), device=META)


class _Model:
    """A model on a device that computes nothing, which knows the shape of its signal."""

    def __init__(self, size: Size) -> None:
        self._size = size

    def parameters(self) -> Any:
        yield torch.empty(0, device=META)

    def signal_shape(self, batch: Any) -> SignalShape:
        return self._size.shape


def _old(size: Size) -> float:
    """Seconds of one draw of the old loop."""
    signal = torch.empty(size.examples, size.tokens, size.width)
    mask = torch.ones(size.examples, size.tokens, dtype=torch.bool)
    return _seconds(lambda: old_noise(size.ids, signal, mask))


def _seconds(act: Callable[[], object]) -> float:
    """CPU seconds of this thread."""
    began = time.thread_time()
    act()
    return time.thread_time() - began


def _training(size: Size) -> Outcome:
    step = size.seconds(size.training)
    draw = NoiseSource("gaussian", 0.5, "train 0 0").draw
    on_cpu = source.example_generator
    waits, olds = [], []
    for _ in range(1 + ROUNDS):
        with (
            mock.patch.object(source, "signal_noise", return_value=_Launches()),
            mock.patch.object(source, "example_generator", lambda seed, name, device: on_cpu(seed, name)),
        ):
            waits.append(_seconds(lambda: 0.4 * draw(size.ids, size.shape, META)))
        olds.append(_old(size))
    # The first round loads what the meta device needs.
    return _outcome(f"training {size.name}", step, waits[1:], olds)


def _testing(size: Size, levels: int) -> Outcome:
    step = size.seconds(2 * levels)
    drawn: list[float] = []

    draw = NoiseSource.draw

    def timed(*given: Any) -> Tensor:
        made: list[Tensor] = []
        drawn.append(_seconds(lambda: made.append(draw(*given))))
        return made[0]

    batches = ({"ids": size.ids} for _ in range(ROUNDS))
    with mock.patch.object(NoiseSource, "draw", timed):
        loaded = layer_losses.with_noise(cast(LayeredModel, _Model(size)), batches, NoiseSource("gaussian", 0.5, 0))
        asked = [_seconds(lambda: next(loaded)) for _ in range(ROUNDS)]
    waits = [own + max(0.0, took / AHEAD - step) for own, took in zip(asked, drawn, strict=True)]
    return _outcome(
        f"test, {levels} level{'s' * (levels > 1)}, {size.name}", step, waits, [_old(size) for _ in range(3)]
    )


def _outcome(name: str, step: float, waits: list[float], olds: list[float]) -> Outcome:
    old, now = statistics.median(olds), statistics.median(waits)
    return Outcome(
        now,
        step,
        "s/step",
        tuple(wait / step for wait in waits),
        note=f"{1000 * now:.1f} ms; the old loop: {1000 * old:.0f} ms, {old / step:.2f} of the step",
        name=f"noise, {name}",
    )


def measure(setting: Setting) -> list[Outcome]:
    return [row for size in SIZES for row in (_training(size), _testing(size, LEVELS), _testing(size, 1))]


BENCH = Bench(
    name="noise",
    what="time that a device waits for noise ÷ its step at the peak of an A100",
    goal=0.05,
    higher_is_better=False,
    measure=measure,
)
