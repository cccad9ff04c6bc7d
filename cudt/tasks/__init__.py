"""The contract of a task: data, the loss f, a metric. A new task is one file beside this one.

The file's name is the task's name in a recipe. It holds `Config`, its section of a recipe, and
`build(config, data_root)`, which returns a `Task`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from cudt import registry
from cudt.schema import NamedSection

Split = Literal["train", "validation", "test"]
#: Tensors by name, padded to one length, and `ids`: what makes each example's noise its own.
Batch = dict[str, Any]


class Example(Protocol):
    """One example; `id` stays the same whatever order or batch it is met in."""

    @property
    def id(self) -> str: ...


class Task(ABC):
    """Gives examples and batches of them, the loss of an answer, and the metric people read."""

    version: int
    """Raised when the same recipe would give other data or another loss; stored with every run."""
    metric_name: str
    higher_is_better: bool

    @abstractmethod
    def examples(self, split: Split) -> Sequence[Any]:
        """The examples of a split, each with an `id`."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Batch:
        """One batch, padded to its longest example, with the examples' `ids`."""

    @abstractmethod
    def losses(self, answer: Tensor, batch: Batch) -> Tensor:
        """f(X, Φ_l(X)) for each example, from the readout's answer at one layer."""

    @abstractmethod
    def scores(self, answer: Tensor, batch: Batch) -> Tensor:
        """The metric's share of each example, to be averaged."""

    @abstractmethod
    def reference_loss(self) -> float:
        """`f_0 = auto`: the loss of the best constant answer, measured on the training data."""

    def weights(self, batch: Batch) -> Tensor:
        """How much each example counts in a mean (its number of tokens, say); padding never does."""
        return torch.ones(len(batch["ids"]))

    def metric(self, mean_score: float) -> float:
        """From a mean score to the metric (a root for RMSE)."""
        return mean_score


def build(config: NamedSection, data_root: Path | None) -> Task:
    """The task that a recipe names."""
    return registry.load("task", config.name).build(config, data_root)
