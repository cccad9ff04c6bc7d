"""The base of all classification tasks: cross-entropy and accuracy."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from math import log

import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor

from cudt.data.batching import Batch
from cudt.tasks.base import Task


class Classification(Task):
    """f = −log ψ(Φ_l(X))_c of the true class c; the metric is the accuracy of the most likely class."""

    metric_name = "accuracy"
    higher_is_better = True
    scores_are_shares = True
    n_classes: int

    @abstractmethod
    def train_labels(self) -> Sequence[int]:
        """The classes of the training examples."""

    def losses(self, answer: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(answer, batch["labels"], reduction="none")

    def scores(self, answer: Tensor, batch: Batch) -> Tensor:
        return (answer.argmax(-1) == batch["labels"]).to(answer.dtype)

    def reference_loss(self) -> float:
        """The entropy of the labels, −Σ p_c·log p_c: the best loss of a classifier that ignores its input."""
        counts = Counter(self.train_labels()).values()
        total = sum(counts)
        return -sum(count / total * log(count / total) for count in counts)
