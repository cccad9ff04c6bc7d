"""The tokens of a batch that have a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudt.noise import example_seed
from cudt.tasks.base import IGNORED

if TYPE_CHECKING:
    from torch import Tensor

    from cudt.data.loader import Batch


def positions(batch: Batch) -> Tensor:
    """The indices of labelled tokens in the flattened batch, in order.

    A task puts them into its batches as `labelled`, because finding them on a GPU makes the CPU
    wait for it.
    """
    if "labelled" in batch:
        return batch["labelled"]
    return (batch["labels"].flatten() != IGNORED).nonzero().squeeze(1)


def flat(by_example: Sequence[Tensor], width: int) -> Tensor:
    """The positions of tokens in each example, as indices of the flattened batch."""
    import torch

    return torch.cat([row * width + own for row, own in enumerate(by_example)])


def labels_kept(batch: Batch, by_example: Sequence[Tensor], count: int, seed: int | str) -> Batch:
    """The batch with `count` labels of each example, drawn by (seed, id) from their positions; all
    if it has fewer.
    """
    import torch

    from cudt.utils.transfer import sent

    chosen = []
    for name, own in zip(batch["ids"], by_example, strict=True):
        generator = torch.Generator().manual_seed(example_seed(f"{seed} tokens", name))
        chosen.append(own[torch.randperm(len(own), generator=generator)[:count].sort().values])
    labels = batch["labels"]
    labelled = sent(flat(chosen, labels.shape[1]), labels.device)
    kept = (
        torch.full_like(labels, IGNORED)
        .flatten()
        .index_copy(0, labelled, labels.flatten()[labelled])
    )
    return {**batch, "labels": kept.view_as(labels), "labelled": labelled}


@dataclass(frozen=True)
class Labelled:
    """The labels of a batch, and the examples they belong to."""

    targets: Tensor
    """(tokens,): the label of each."""
    rows: Tensor
    """(tokens,): the example that each belongs to."""
    counts: Tensor
    """(examples,): the number of each example's tokens."""

    @classmethod
    def of(cls, batch: Batch) -> Labelled:
        labels, found = batch["labels"], positions(batch)
        rows = found.div(labels.shape[1], rounding_mode="floor")
        return cls(labels.flatten()[found], rows, (labels != IGNORED).sum(1))

    def means(self, values: Tensor) -> Tensor:
        """The mean of each example's tokens."""
        sums = values.new_zeros(len(self.counts)).index_add(0, self.rows, values)
        return sums / self.counts.clamp_min(1)

    def by_token(self, weights: Tensor) -> Tensor:
        """The weight of each token in Σ weight·mean over the examples."""
        return (weights / self.counts.clamp_min(1))[self.rows]
