"""Batches: by length in evaluation, by seed and epoch in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

#: Tensors by name, padded to one length, and `ids`, which determine the noise of each example.
Batch = dict[str, Any]
#: Updates that are sorted together when training groups by length; with more, a whole epoch would be sorted by length.
_POOL = 50


class Collates(Protocol):
    """The part of a task that batching needs."""

    def length(self, example: Any) -> int: ...
    def collate(self, examples: Sequence[Any]) -> Batch: ...


def to_device(batch: Batch, device: torch.device) -> Batch:
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}


def take(batch: Batch, rows: Tensor) -> Batch:
    """Some examples of a batch, by their indices; the padding stays."""
    picked = rows.tolist()
    return {
        key: value[rows] if isinstance(value, Tensor) else [value[row] for row in picked]
        for key, value in batch.items()
    }


def n_batches(examples: Sequence[Any], size: int) -> int:
    return -(-len(examples) // size)


def batches(task: Collates, examples: Sequence[Any], size: int, device: torch.device) -> Iterator[Batch]:
    """All examples once, longest first: little padding, and a batch too large for memory fails at once."""
    ordered = sorted(examples, key=task.length, reverse=True)
    for start in range(0, len(ordered), size):
        yield to_device(task.collate(ordered[start : start + size]), device)


def updates(
    n_examples: int, size: int, generator: np.random.Generator, lengths: Sequence[int] | None = None
) -> np.ndarray[Any, Any]:
    """The indices of the examples of each update of an epoch, (updates, size), in random order; the rest is not used.

    With `lengths`, examples of similar length share an update: the random order is cut into pools of 50 updates, each
    pool is sorted by length, and the updates are shuffled again.
    """
    count = n_examples // size
    order = generator.permutation(n_examples)[: count * size]
    if lengths is None:
        return order.reshape(count, size)
    pools = np.split(order, range(_POOL * size, len(order), _POOL * size))
    by_length = [pool[np.argsort(np.asarray(lengths)[pool], kind="stable")] for pool in pools]
    return generator.permutation(np.concatenate(by_length).reshape(count, size))
