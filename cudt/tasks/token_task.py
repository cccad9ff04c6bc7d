"""The base of tasks with an answer for each token: cross-entropy and accuracy of the tokens that
have a label.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cudt.noise import example_seed
from cudt.tasks.base import IGNORED, Task
from cudt.utils.transfer import sent

if TYPE_CHECKING:
    from torch import Tensor

    from cudt.data.batching import Batch


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
        import torch

        chosen = []
        for name, own in zip(batch["ids"], self.label_positions(batch), strict=True):
            generator = torch.Generator().manual_seed(example_seed(f"{seed} tokens", name))
            chosen.append(own[torch.randperm(len(own), generator=generator)[:count].sort().values])
        labels = batch["labels"]
        kept, labelled = torch.full_like(labels, IGNORED).flatten(), flat(chosen, labels.shape[1])
        labelled = sent(labelled, labels.device)
        kept = kept.index_copy(0, labelled, labels.flatten()[labelled])
        return {**batch, "labels": kept.view_as(labels), "labelled": labelled}

    def weights(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED).sum(1).float()

    def losses(self, answer: Any, batch: Batch) -> Tensor:
        return answer.mean_losses(batch)

    def scores(self, answer: Any, batch: Batch) -> Tensor:
        return answer.judge(batch)[1]

    def judge(self, answer: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        return answer.judge(batch)

    def reference_loss(self) -> float:
        """The entropy of the labels, −Σ p_w·log p_w: the best loss of a model that ignores its
        input.
        """
        counts = self.label_counts()
        total = counts.total()
        return -sum(count / total * math.log(count / total) for count in counts.values())


def flat(by_example: Sequence[Tensor], width: int) -> Tensor:
    """The positions of tokens in each example, as indices of the flattened batch."""
    import torch

    return torch.cat([row * width + own for row, own in enumerate(by_example)])
