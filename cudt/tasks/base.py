"""The contract of a task: data, the loss f, a metric. A new task is one file beside this one.

The file's name is the task's name in a recipe. It holds `Config`, its section of a recipe, and
`build(config, data_root, pretrained)`, which returns a `Task`; `pretrained` names the model whose tokenizer a text task
has to use. A task on published data also has `datasets(data_root)`, which returns the
`DatasetStatus` of each of its datasets for `cudt data`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cudt.config import registry
from cudt.config.schema import NamedSection
from cudt.data.batching import Batch
from cudt.data.splits import Split
from cudt.noise.base import TextNoise
from cudt.utils.errors import UserError

#: The label of a token that does not count, as everywhere in transformers.
IGNORED = -100
#: How a metric comes from the mean score of the examples: it is the mean, or its root.
OfMean = Literal["mean", "root"]


class Task(ABC):
    """Gives examples and batches of them, the loss of an answer, and the metric people read."""

    version: int
    """Raised when the same recipe would give other data or another loss; stored with every run."""
    metric_name: str
    higher_is_better: bool
    metric_of_mean: OfMean = "mean"
    """Whether the metric is the mean score itself or its root; stored with every run."""
    scores_are_shares: bool = False
    """Whether scores are 0 or 1 and the metric their mean, so that its interval is Wilson's."""
    tokenizer: Any = None
    """What cuts its texts into tokens, if it has texts and a pretrained model reads them."""
    has_texts: bool = False
    """Whether there are source texts to put noise into (`corrupted`)."""
    has_token_answers: bool = False
    """Whether an example has an answer for each of its tokens, some of which can be left out (`thinned`)."""
    has_pictures: bool = False
    """Whether inputs and answers can be looked at (`pictures`)."""

    @abstractmethod
    def examples(self, split: Split) -> Sequence[Any]:
        """The examples of a split, each with an `id` that stays the same whatever order or batch it is met in."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Batch:
        """One batch, padded to its longest example, with the examples' `ids`."""

    @abstractmethod
    def losses(self, answer: Any, batch: Batch) -> Tensor:
        """f(X, Φ_l(X)) for each example, from the readout's answer at one layer."""

    @abstractmethod
    def scores(self, answer: Any, batch: Batch) -> Tensor:
        """The metric's share of each example, to be averaged."""

    def judge(self, answer: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses and scores, for an answer that is costly to evaluate twice."""
        return self.losses(answer, batch), self.scores(answer, batch)

    @abstractmethod
    def reference_loss(self) -> float:
        """`f_0 = auto`: the loss of the best constant answer, measured on the training data."""

    def corrupted(self, split: Split, noise: TextNoise, level: float, seed: int) -> Sequence[Any]:
        """The examples of a split with noise at some level in their source texts."""
        raise UserError(f"{type(noise).__name__} noise is applied to source texts, and {type(self).__name__} has none")

    def notes(self) -> dict[str, int]:
        """What was cut or left out of the data, by name; stored with every run."""
        return {}

    def fingerprint(self, splits: Sequence[Split]) -> str:
        """Changes whenever the data of some splits do; empty where they follow from the recipe alone."""
        return ""

    def length(self, example: Any) -> int:
        """What makes a batch long; examples of like length are batched together."""
        return 1

    def weights(self, batch: Batch) -> Tensor:
        """How much each example counts in a mean (its number of tokens, say); padding never does."""
        return torch.ones(len(batch["ids"]))

    def thinned(self, batch: Batch, count: int, seed: int | str) -> Batch:
        """The batch with `count` tokens of each example left that count, drawn by (seed, id); all where it has fewer.

        Their mean loss is that of all of them on average.
        """
        raise UserError(f"{type(self).__name__} has one answer for an example, none for each of its tokens")

    def metric(self, mean_score: float) -> float:
        """From a mean score to the metric."""
        return math.sqrt(mean_score) if self.metric_of_mean == "root" else mean_score

    def further_metrics(self, mean_score: float) -> dict[str, float]:
        """Other ways to read the same mean score, by name."""
        return {}

    def pictures(self, values: Tensor) -> np.ndarray[Any, Any]:
        """Inputs or answers as pictures, (examples, frames, height, width), 8-bit grey."""
        raise UserError(f"{type(self).__name__} has nothing to look at")


def build_task(config: NamedSection, data_root: Path | None, pretrained: str | None) -> Task:
    """The task that a recipe names, in the tokens of the model that it names."""
    return registry.load("task", config.name).build(config, data_root, pretrained)
