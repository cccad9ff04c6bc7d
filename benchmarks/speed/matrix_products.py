"""Which part of a training step is spent on matrix products, and how fast they could be at best."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.speed.bench import Outcome
from cudt.data.batching import Batch
from cudt.models.layer_losses import LayerwiseLosses

_NAMES = ("mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_")
#: A product is repeated until about this many operations are done, so that the clock can measure it.
_OPERATIONS = 5e8


@dataclass(frozen=True)
class Product:
    """A product of matrices, or of a batch of them, with the shapes and strides that a step used."""

    first: Tensor
    second: Tensor
    count: int
    """How often the step computes it."""

    @property
    def operations(self) -> int:
        return 2 * self.first.numel() * self.second.shape[-1]

    def seconds(self) -> float:
        """CPU time of one product alone."""
        times = 1 + int(_OPERATIONS / self.operations)
        start = time.process_time()
        for _ in range(min(times, 1000)):
            self.first @ self.second
        return (time.process_time() - start) / min(times, 1000)


class _Recorder(TorchDispatchMode):
    seen: Counter[Any]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _NAMES:
            self.seen[tuple((tuple(one.shape), one.stride()) for one in args[-2:])] += 1
        return func(*args, **(kwargs or {}))


def products_of(step: Callable[[], object]) -> list[Product]:
    """The matrix products of a step, on random numbers."""
    recorder = _Recorder()  # type: ignore[no-untyped-call]
    recorder.seen = Counter()
    with recorder:
        step()
    found = recorder.seen.items()
    return [Product(_random(*first), _random(*second), count) for (first, second), count in found]


def _random(shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    size = 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    return torch.randn(size).as_strided(shape, stride)


def training_step(losses: LayerwiseLosses, batch: Batch, noise: Tensor) -> Callable[[], None]:
    """Forward pass, backward pass of a sum of layer losses, clipping and Adam."""
    weights = list(losses.parameters())
    optimizer = torch.optim.Adam(weights, lr=1e-5, fused=True)

    def step() -> None:
        values = losses(batch, noise).mean(1)
        (values.log() * torch.linspace(0.1, 1.0, len(values))).sum().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def share_of_peak(
    ours: Callable[[], object], before: Callable[[], object], name: str, *, rounds: int, steps: int
) -> Outcome:
    """Operations per second of our step ÷ those of its fastest matrix product.

    The limit is that of a step of nothing but its products. `before` is the same step with the layers' equations as
    they are printed, for the note.
    """
    for warmup in (ours, before):
        warmup()
    products = products_of(ours)
    total = sum(product.count * product.operations for product in products)
    ours_seconds, before_seconds, peaks, limits = [], [], [], []
    for _ in range(rounds):
        ours_seconds.append(_timed(ours, steps))
        alone = [product.seconds() for product in products]
        before_seconds.append(_timed(before, steps))
        # Only large products: the clock is too coarse for others.
        rates = zip(products, alone, strict=True)
        peaks.append(max(one.operations / s for one, s in rates if one.count * one.operations > 0.02 * total))
        busy = math.fsum(one.count * s for one, s in zip(products, alone, strict=True))
        limits.append(total / busy / peaks[-1])
    speed = [total / seconds for seconds in ours_seconds]
    faster = statistics.median(old / new for old, new in zip(before_seconds, ours_seconds, strict=True))
    return Outcome(
        statistics.median(speed) / 1e9,
        statistics.median(peaks) / 1e9,
        "GFLOP/s",
        tuple(one / peak for one, peak in zip(speed, peaks, strict=True)),
        statistics.median(limits),
        f"{statistics.median(ours_seconds) * 1e3:.0f} ms a step, {faster:.2f}× as fast as the printed equations",
        name,
    )


def _timed(step: Callable[[], object], steps: int) -> float:
    start = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - start) / steps
