"""The base of all classification tasks: a loss of class probabilities, and accuracy."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudt.config.tasks import LossName
from cudt.tasks.base import Task
from cudt.tasks.class_losses import LOSSES

if TYPE_CHECKING:
    from torch import Tensor

    from cudt.data.batching import Batch


class Classification(Task):
    """f is a loss of the class probabilities; the metric is the accuracy of the most likely
    class.
    """

    metric_name = "accuracy"
    higher_is_better = True
    scores_are_shares = True
    n_classes: int
    loss: LossName = "cross_entropy"
    """f: the recipe's `task.loss`."""
    classes: Sequence[int | str] = ()
    """What the data call the classes, in the order of the answers; empty if they are called 0, 1,
    …"""

    @abstractmethod
    def train_labels(self) -> Sequence[int]:
        """The classes of the training examples."""

    def losses(self, answer: Tensor, batch: Batch) -> Tensor:
        return LOSSES[self.loss].of_answers(answer, batch["labels"])

    def scores(self, answer: Tensor, batch: Batch) -> Tensor:
        return (answer.argmax(-1) == batch["labels"]).to(answer.dtype)

    def probabilities(self, answer: Tensor) -> Tensor:
        """The probability of each class, (examples, classes)."""
        return answer.softmax(-1)

    def reference_loss(self) -> float:
        """The least loss of a classifier that ignores its input; the entropy of the labels for a
        cross-entropy.
        """
        counts = Counter(self.train_labels())
        shares = [count / counts.total() for count in counts.values()]
        return LOSSES[self.loss].of_guessing([*shares, *[0.0] * (self.n_classes - len(shares))])
