"""Ratios f_l / f_{l−1} of single examples; the constraints only limit the ratio of the means."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Left edges of the histogram's bins; the last bin has no right edge.
EDGES = [round(0.02 * step, 2) for step in range(101)]


def layer_ratios(losses: Tensor) -> Tensor:
    """f_l / f_{l−1} for l = 2 … L, (layers − 1, examples). If both losses are 0, the ratio is 1.

    f_0 is not the loss of an example, so the first layer has no ratio.
    """
    before, after = losses[:-1], losses[1:]
    return torch.where((before == 0) & (after == 0), 1.0, after / before)


def summary(ratios: Tensor) -> dict[str, float]:
    """Mean, median, share of ratios below 1, and number of ratios."""
    return {
        "mean": ratios.mean().item(),
        "median": float(np.median(ratios.numpy())),
        "decreasing": (ratios < 1).double().mean().item(),
        "n": float(ratios.numel()),
    }


def histogram(ratios: Tensor) -> list[tuple[float, float, float, float]]:
    """(left, right, share, cumulative share) of each bin; bins include their left edge."""
    edges = torch.tensor(EDGES, dtype=ratios.dtype)
    bins = torch.bucketize(ratios.flatten(), edges[1:], right=True)
    shares = torch.bincount(bins, minlength=len(EDGES)).double() / ratios.numel()
    rights = [*EDGES[1:], float("inf")]
    return list(zip(EDGES, rights, shares.tolist(), shares.cumsum(0).tolist(), strict=True))
