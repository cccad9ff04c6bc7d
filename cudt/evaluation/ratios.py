"""Ratios f_l / f_{l−1} of single examples; the constraints only limit the ratio of the means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cudt.evaluation.stored import BLOCK

#: Left edges of the histogram's bins; the last bin has no right edge.
EDGES = [round(0.02 * step, 2) for step in range(101)]
#: Bits of a number that one pass over all numbers finds, of the 64.
_DIGIT = 16
_SIGN = np.uint64(1 << 63)

Array = np.ndarray[Any, np.dtype[np.float64]]


def layer_ratios(losses: Tensor) -> Tensor:
    """f_l / f_{l−1} for l = 2 … L, (layers − 1, examples). If both losses are 0, the ratio is 1.

    f_0 is not the loss of an example, so the first layer has no ratio.
    """
    before, after = losses[:-1], losses[1:]
    return torch.where((before == 0) & (after == 0), 1.0, after / before)


@dataclass(frozen=True)
class Ratios:
    """The distribution of the ratios over examples: of all layers (0) and of each layer from the
    second on.
    """

    summaries: dict[int, dict[str, float]]
    """Mean, median, share of ratios below 1, and number of ratios, by layer."""
    histogram: list[tuple[float, float, float, float]]
    """(left, right, share, cumulative share) of each bin, of all layers; bins include their left
    edge."""


def distribution(blocks: Callable[[], Iterable[Tensor]]) -> Ratios | None:
    """The distribution of ratios; None for a model of one layer.

    `blocks` is called for every pass over the ratios, and gives them in blocks of examples, (layers
    − 1, examples).
    """
    # All layers first, then each of them: rounding differs between the sum of all and the sum of
    # the layers' sums.
    sums, n = torch.zeros(()), 0
    below, bins = torch.zeros((), dtype=torch.long), torch.zeros(len(EDGES), dtype=torch.long)
    for ratios in blocks():
        if not len(ratios):
            return None
        sums = sums + torch.stack([part.sum() for part in (ratios, *ratios)])
        below = below + torch.stack([(part < 1).sum() for part in (ratios, *ratios)])
        bins += _bins(ratios)
        n += ratios.shape[1]
    counts = torch.tensor([n * (len(sums) - 1), *[n] * (len(sums) - 1)])
    medians = torch.tensor(_medians(blocks, len(sums) - 1, n), dtype=torch.double)
    columns = (sums / counts, medians, below.double() / counts, counts.double())
    names = ("mean", "median", "decreasing", "n")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    summaries = {
        layer + (layer > 0): dict(zip(names, row, strict=True)) for layer, row in enumerate(rows)
    }
    return Ratios(summaries, _histogram(bins))


def _bins(ratios: Tensor) -> Tensor:
    """The number of ratios in each bin."""
    edges = torch.tensor(EDGES, dtype=ratios.dtype)
    return torch.bincount(
        torch.bucketize(ratios.flatten(), edges[1:], right=True), minlength=len(EDGES)
    )


def _histogram(bins: Tensor) -> list[tuple[float, float, float, float]]:
    shares = bins.double() / bins.sum()
    rights = [*EDGES[1:], float("inf")]
    return list(zip(EDGES, rights, shares.tolist(), shares.cumsum(0).tolist(), strict=True))


def _medians(blocks: Callable[[], Iterable[Tensor]], layers: int, n: int) -> list[float]:
    """The median of all ratios, and that of each layer; at most one block of ratios, or one layer,
    is in memory.
    """
    by_layer: list[float] = []
    size = max(1, BLOCK // n)
    for start in range(0, layers, size):
        # Copies: views would keep all layers in memory.
        some = torch.cat([ratios[start : start + size].clone() for ratios in blocks()], 1).numpy()
        by_layer += np.median(some, axis=1).tolist()
    return [median(lambda: (ratios.numpy().ravel() for ratios in blocks()), layers * n), *by_layer]


def median(blocks: Callable[[], Iterable[Array]], n: int) -> float:
    """The exact median of n numbers that come in blocks."""
    if n <= BLOCK:
        return float(np.median(np.concatenate([*blocks()])))
    if any(np.isnan(block).any() for block in blocks()):
        return float("nan")
    return float(np.mean([_ranked(blocks, rank) for rank in sorted({(n - 1) // 2, n // 2})]))


def _ranked(blocks: Callable[[], Iterable[Array]], rank: int) -> float:
    """The number with `rank` smaller ones, from its first bits to its last: each pass counts what
    follows them.
    """
    prefix = 0
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = np.zeros(2**_DIGIT, dtype=np.int64)
        for block in blocks():
            keys = _ordered(block)
            if prefix or shift < 64 - _DIGIT:
                keys = keys[keys >> np.uint64(shift + _DIGIT) == prefix]
            digits = (keys >> np.uint64(shift)) & np.uint64(2**_DIGIT - 1)
            counts += np.bincount(digits.astype(np.int64), minlength=2**_DIGIT)
        up_to = counts.cumsum()
        digit = int(np.searchsorted(up_to, rank, side="right"))
        rank -= int(up_to[digit] - counts[digit])
        prefix = prefix << _DIGIT | digit
    key = np.uint64(prefix)
    return float((key ^ _SIGN if key & _SIGN else ~key).view(np.float64))


def _ordered(values: Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Integers in the order of the numbers: the bits of a float are in order once negative ones are
    inverted.
    """
    bits = np.ascontiguousarray(values).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)
