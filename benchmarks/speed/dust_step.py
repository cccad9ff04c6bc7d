"""A training step of DUST against the fastest of its own matrix products."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.speed.bench import Bench, Outcome, Setting
from cudt.config import recipe
from cudt.data.batching import Batch
from cudt.training.train import assemble_model
from cudt.models.layer_losses import LayerwiseLosses

#: Sizes of ucsd-dust-cpu, on generated video.
_UCSD = ("task.size=160", "task.train=2", "model.layers=5", "model.patch=16", "model.atoms=24")
_ROUNDS = 5
_NAMES = ("mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_")
#: A product is repeated until about this many operations are done, so that the clock can measure
#: it.
_OPERATIONS = 5e8


@dataclass(frozen=True)
class Product:
    """A product of matrices, or of a batch of them, with the shapes and strides that a step
    used.
    """

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


def measure(setting: Setting) -> list[Outcome]:
    ours = assemble_model(recipe.load("shapes-dust", _UCSD), None, torch.device("cpu"))
    batch = ours.task.collate(ours.task.examples("train")[:2])
    step = training_step(ours, batch, 10 * torch.randn(batch["frames"].shape))
    step()
    products = products_of(step)
    total = sum(product.count * product.operations for product in products)
    seconds, peaks = [], []
    for _ in range(_ROUNDS):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
        # Only large products: the clock is too coarse for others.
        rates = ((one, one.seconds()) for one in products)
        peaks.append(
            max(one.operations / s for one, s in rates if one.count * one.operations > 0.02 * total)
        )
    ratios = tuple(total / one / peak for one, peak in zip(seconds, peaks, strict=True))
    ours_speed, note = (
        total / statistics.median(seconds),
        f"{statistics.median(seconds) * 1e3:.0f} ms a step",
    )
    return [Outcome(ours_speed / 1e9, statistics.median(peaks) / 1e9, "GFLOP/s", ratios, note)]


BENCH = Bench(
    name="dust-step",
    what="GFLOP/s of a training step of DUST (ucsd-dust-cpu) ÷ of its fastest matrix product",
    goal=0.55,
    higher_is_better=True,
    measure=measure,
)
