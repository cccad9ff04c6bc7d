"""Which examples go together: in evaluation those of like length, in training what seed and epoch say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

#: Tensors by name, padded to one length, and `ids`: what makes each example's noise its own.
Batch = dict[str, Any]
#: Batches that are sorted among themselves when training groups by length; more would order the epoch by length.
_POOL = 50


class Collates(Protocol):
    """What batching asks of a task."""

    def length(self, example: Any) -> int: ...
    def collate(self, examples: Sequence[Any]) -> Batch: ...


def to_device(batch: Batch, device: torch.device) -> Batch:
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}


def n_batches(examples: Sequence[Any], size: int) -> int:
    return -(-len(examples) // size)


def batches(task: Collates, examples: Sequence[Any], size: int, device: torch.device) -> Iterator[Batch]:
    """All the examples once, longest first: little padding, and what does not fit into memory shows at once."""
    ordered = sorted(examples, key=task.length, reverse=True)
    for start in range(0, len(ordered), size):
        yield to_device(task.collate(ordered[start : start + size]), device)


def updates(
    n_examples: int, size: int, generator: np.random.Generator, lengths: Sequence[int] | None = None
) -> np.ndarray[Any, Any]:
    """The examples of each update of an epoch, (updates, size), in random order; those left over wait.

    With `lengths`, examples of like length share an update: the random order is cut into pools of 50 updates, each is
    sorted by length, and the updates are shuffled again.
    """
    count = n_examples // size
    order = generator.permutation(n_examples)[: count * size]
    if lengths is None:
        return order.reshape(count, size)
    pools = np.split(order, range(_POOL * size, len(order), _POOL * size))
    by_length = [pool[np.argsort(np.asarray(lengths)[pool], kind="stable")] for pool in pools]
    return generator.permutation(np.concatenate(by_length).reshape(count, size))
