"""Memory of an update: what the backward pass keeps, measured on small shapes, fitted, and extrapolated.

The bytes that a layer keeps are a sum over its tensors, so they are linear in tokens × width, tokens × inner width and
so on. The coefficients are fitted to small shapes and checked with larger ones. The peak of an update is at most
weights + gradients + Adam's two moments + what is kept + what one layer keeps (the work space of the backward pass;
with gradient checkpointing twice, because a layer is computed again) + two chunks of logits.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from benchmarks.scale import formulas
from benchmarks.scale.shapes import Shape

#: Bytes of a number in fp32.
FP32 = 4


@dataclass(frozen=True)
class Measured:
    """The memory of an update of a shape that reads all layers, in bytes."""

    use: Literal["fit", "check"]
    shape: Shape
    kept: int
    """At the end of the forward pass."""
    peak: int
    """The most, without weights and the optimiser's moments."""


def measure(shape: Shape, use: Literal["fit", "check"] = "check") -> Measured:
    """Measure the second update: the first one makes the optimiser's moments."""
    from benchmarks.scale.counters import LiveBytes
    from benchmarks.scale.networks import Work

    work = Work(shape)
    work.update(shape.layers)
    live = LiveBytes()
    with live:
        loss = work.losses(shape.layers)
        if shape.recompute:
            # Frames of gradient checkpointing refer to each other.
            gc.collect()
        kept = live.now
        loss.backward()
        work.step()
    return Measured(use, shape, kept, live.peak)


def kind(shape: Shape) -> str:
    """Shapes of one kind have one model of what they keep; with gradient checkpointing, whatever is trained."""
    if shape.recompute:
        return f"{shape.family} recompute"
    return shape.family if shape.lora else f"{shape.family} full"


def features(shape: Shape) -> list[float]:
    """The numbers that kept bytes are linear in: of each layer, and once more because the first or last may differ."""
    d, f, n = shape.width, shape.inner, shape.rows * shape.tokens
    read = shape.examples * shape.read
    once: list[float] = [1.0]
    if shape.family == "causal":
        of_a_layer = [n * d, read * d, read]
        # Positions are rotated by as many angles as a head is wide; a trained head has its gradient from the start.
        once += [shape.tokens * d / shape.heads, 0 if shape.lora or shape.recompute else shape.words * d]
        if shape.recompute:
            # The state of the generator, with which dropout is drawn again.
            of_a_layer += [1]
        else:
            of_a_layer += [n * shape.keys, n * f, n * shape.heads, n]
    elif shape.family in ("encoder", "vit"):
        of_a_layer = [n * d, n * f, n * shape.heads, n]
    else:
        of_a_layer = [n * d, n * f, n * shape.tokens, d * f, d * d]
    return [*(shape.layers * one for one in of_a_layer), *of_a_layer, *once]


class KeptModel:
    """Bytes kept for the backward pass, fitted to measurements."""

    def __init__(self, measured: Iterable[Measured]) -> None:
        self._coefficients: dict[str, Any] = {}
        by_kind: dict[str, list[Measured]] = {}
        for one in (row for row in measured if row.use == "fit"):
            by_kind.setdefault(kind(one.shape), []).append(one)
        for name, rows in by_kind.items():
            matrix = np.array([features(row.shape) for row in rows])
            # Scaled, so that small and large features count alike.
            scale = matrix.max(0).clip(1)
            weights = 1 / np.array([row.kept for row in rows])
            solved = np.linalg.lstsq(matrix / scale * weights[:, None], np.ones(len(rows)), rcond=1e-9)[0]
            self._coefficients[name] = solved / scale

    def kept(self, shape: Shape) -> float:
        """Bytes at the end of the forward pass."""
        return float(np.dot(self._coefficients[kind(shape)], features(shape)))

    def of_a_layer(self, shape: Shape) -> float:
        """Bytes that one layer keeps without gradient checkpointing; the backward pass works with about as much."""
        deep, deeper = (replace(shape, layers=layers, recompute=False, read=0) for layers in (1, 2))
        return self.kept(deeper) - self.kept(deep)

    def work(self, shape: Shape) -> float:
        """Bytes besides weights, moments and gradients that the peak of an update does not exceed."""
        layers = 2 if shape.recompute else 1
        return self.kept(shape) + layers * self.of_a_layer(shape) + chunks(shape)

    def bound(self, shape: Shape) -> float:
        """What the peak without weights and moments does not exceed."""
        return self.work(shape) + FP32 * formulas.weights(shape).trained


def chunks(shape: Shape) -> float:
    """Bytes of the logits and probabilities that are in memory at a time."""
    from cudt.tasks.token_logits import CHUNK

    return 2 * FP32 * min(CHUNK, shape.examples * shape.read * shape.words)


def shapes_to_fit(each: int = 30) -> list[Shape]:
    """Small shapes of every kind, at random; of two layers or more, because a single one is first and last at once."""
    rng = np.random.default_rng(0)

    def pick(*values: int) -> int:
        return int(rng.choice(values))

    found = []
    for _ in range(each):
        size: dict[str, Any] = {"layers": pick(2, 3, 4, 6), "examples": pick(1, 2, 3)}
        text: dict[str, Any] = {
            **size,
            "width": pick(16, 32, 48, 64),
            "inner": pick(24, 64, 96),
            "tokens": pick(8, 12, 20, 31),
        }
        found.append(Shape("encoder", **text, heads=pick(1, 2, 4), words=50))
        found.append(Shape("ut", **{**text, "inner": pick(8, 16, 24)}, words=50, tied=True))
        image: dict[str, Any] = {"width": 3 * pick(16, 64), "inner": pick(24, 64, 96), "tokens": 1 + pick(4, 9, 16)}
        found.append(Shape("vit", **size, **image, heads=pick(1, 2, 4), sequences=pick(1, 2)))
        patch: dict[str, Any] = {"width": pick(16, 36, 64), "inner": pick(25, 64, 100), "tokens": pick(4, 6, 8)}
        found += [Shape(family, **size, **patch, sequences=pick(3, 5)) for family in ("dust", "ut_video")]
        heads = pick(2, 4)
        words: dict[str, Any] = {
            "heads": heads,
            "keys": text["width"] // pick(1, 2),
            "words": pick(40, 80),
            "read": pick(2, 5, 7),
        }
        one = Shape("causal", **{**text, **words})
        found += [one, replace(one, recompute=True), replace(one, lora=False)]
    return found


def shapes_to_check() -> list[Shape]:
    """Larger shapes: the paper's widths where a layer of them fits, and its depths."""
    return [
        Shape("encoder", 2, 1024, 4096, 64, heads=16, words=500, examples=2),
        Shape("encoder", 24, 64, 256, 128, heads=4, words=500, examples=2),
        Shape("vit", 2, 768, 3072, 197, heads=12, sequences=2),
        Shape("causal", 1, 4096, 14_336, 64, 32, 1024, 2000, read=32),
        Shape("causal", 32, 64, 224, 128, 4, 16, 2000, read=64, examples=4, recompute=True),
        Shape("causal", 4, 512, 1792, 128, 8, 128, 2000, read=64, lora=False),
        Shape("ut", 9, 768, 64, 256, words=500, examples=2, tied=True),
        Shape("dust", 5, 256, 576, 8, sequences=100),
        Shape("ut_video", 7, 256, 576, 8, sequences=100, tied=True),
    ]
