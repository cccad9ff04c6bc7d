"""The base of tasks with an answer for each token: cross-entropy and accuracy of the tokens that
have a label.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudt.tasks.base import IGNORED, Task
from cudt.tasks.labelled import Labelled, labels_kept

if TYPE_CHECKING:
    from torch import Tensor

    from cudt.data.batching import Batch
    from cudt.tasks.token_logits import DenseLogits, TokenLogits


class TokenTask(Task):
    """f is the cross-entropy of the labels, averaged over an example's tokens; the metric is the
    share that is right.

    Examples are weighted by their number of labels, so f_l is the mean over all of them.
    """

    metric_name = "token_accuracy"
    higher_is_better = True
    has_token_answers = True

    @abstractmethod
    def label_positions(self, batch: Batch) -> Sequence[Tensor]:
        """The positions of the labels of each example, on the CPU."""

    @abstractmethod
    def label_counts(self) -> Counter[int]:
        """How often each label occurs in the training data."""

    def thinned(self, batch: Batch, count: int, seed: int | str) -> Batch:
        """The batch with the labels of `count` tokens of each example; drawn on the CPU, so that no
        device waits.
        """
        return labels_kept(batch, self.label_positions(batch), count, seed)

    def weights(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED).sum(1).float()

    def losses(self, answer: TokenLogits | DenseLogits, batch: Batch) -> Tensor:
        return answer.mean_losses(Labelled.of(batch))

    def scores(self, answer: TokenLogits | DenseLogits, batch: Batch) -> Tensor:
        return self.judge(answer, batch)[1]

    def judge(self, answer: TokenLogits | DenseLogits, batch: Batch) -> tuple[Tensor, Tensor]:
        labelled = Labelled.of(batch)
        losses, hits = answer.losses_and_hits(labelled.targets)
        return labelled.means(losses), labelled.means(hits)

    def reference_loss(self) -> float:
        """The entropy of the labels, −Σ p_w·log p_w: the best loss of a model that ignores its
        input.
        """
        counts = self.label_counts()
        total = counts.total()
        return -sum(count / total * math.log(count / total) for count in counts.values())
