"""What an accelerator waits for because of training noise, as a share of its step.

There is none here, so its step takes the time that an A100 would need at its peak (312 TFLOP/s in
bf16), which no model reaches: the real share is smaller. Training noise is drawn on the device, and
what is left for the CPU is to launch kernels: measured on torch's `meta` device, which launches and
computes nothing. The clock is the CPU time of a thread, so that other processes do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor

from benchmarks.speed.bench import Bench, Outcome, Setting
from cudt import noise
from cudt.noise import NoiseSource, SignalShape

PEAK = 312e12
ROUNDS = 5
META = torch.device("meta")


@dataclass(frozen=True)
class Size:
    """A batch, and what computing on it costs: RoBERTa-large in full, and Llama of 8 billion
    weights with LoRA.
    """

    name: str
    examples: int
    tokens: int
    width: int
    weights: float
    """Those of the layers, which every token is multiplied with."""
    training: int
    """FLOPs per weight and token of an update: 6, or 4 where the gradients of frozen weights are
    left out."""


SIZES = (Size("32×512×1024", 32, 512, 1024, 3.0e8, 6), Size("4×512×4096", 4, 512, 4096, 8.0e9, 4))


class _Launches:
    """Gaussian noise on the meta device."""

    def standard(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return torch.randn(tuple(shape), device=META)


def _training(size: Size) -> Outcome:
    step = size.training * size.weights * size.examples * size.tokens / PEAK
    draw = NoiseSource("gaussian", 0.5, "train 0 0").draw
    ids = [str(number) for number in range(size.examples)]
    shape = SignalShape([size.tokens] * size.examples, size.tokens, (size.width,))
    on_cpu = noise.example_generator
    waits = []
    for _ in range(1 + ROUNDS):
        with (
            mock.patch.object(noise, "signal_noise", return_value=_Launches()),
            mock.patch.object(
                noise, "example_generator", lambda seed, name, device: on_cpu(seed, name)
            ),
        ):
            began = time.thread_time()
            0.4 * draw(ids, shape, META)
            waits.append(time.thread_time() - began)
    # The first round loads what the meta device needs.
    del waits[0]
    now, shares = statistics.median(waits), tuple(wait / step for wait in waits)
    return Outcome(
        now,
        step,
        "s/step",
        shares,
        note=f"{1000 * now:.1f} ms",
        name=f"noise, training {size.name}",
    )


def measure(setting: Setting) -> list[Outcome]:
    return [_training(size) for size in SIZES]


BENCH = Bench(
    name="noise",
    what="time that a device waits for training noise ÷ its step at the peak of an A100",
    goal=0.05,
    higher_is_better=False,
    measure=measure,
)
