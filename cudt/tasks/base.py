"""The contract of a task: data, the loss f, a metric. A new task is one file in this folder.

The file's name is the task's name in a recipe. It defines `Config`, the keys of its section in a
recipe, and `build(config, data_root, pretrained)`, which returns a `Task`; `pretrained` is the name
of the model whose tokenizer a text task uses. A task on published data also has
`datasets(data_root)`, which returns the `DatasetStatus` of each of its datasets for `cudt data`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cudt.config import plugins
from cudt.config.schema import NamedSection
from cudt.data.splits import SEEN, Split
from cudt.noise import TextNoise
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from cudt.data.batching import Batch

#: The label of a token that is not counted, as in transformers.
IGNORED = -100
#: How the metric follows from the mean score of the examples: it is the mean, or its square root.
OfMean = Literal["mean", "root"]


class Task(ABC):
    """Examples and their batches, the loss of an answer, and the metric."""

    version: int
    """Increase it if the same recipe gives other data or another loss; stored with every run."""
    metric_name: str
    higher_is_better: bool
    metric_of_mean: OfMean = "mean"
    """Whether the metric is the mean score or its square root; stored with every run."""
    scores_are_shares: bool = False
    """Whether scores are 0 or 1 and the metric is their mean, so that Wilson's interval applies."""
    tokenizer: Any = None
    """The tokenizer of its texts, if a pretrained model reads them."""
    has_texts: bool = False
    """Whether it has source texts, which noise can be applied to (`corrupted`)."""
    has_token_answers: bool = False
    """Whether an example has an answer for each token, so that some can be left out (`thinned`)."""
    has_pictures: bool = False
    """Whether inputs and answers can be shown as images (`pictures`)."""
    input_is_answer: bool = False
    """Whether the noisy input is itself an answer, as in denoising; its metric is then measured
    like the model's."""
    commit: str | None = None
    """The commit of the hub's dataset that the data come from; None for other data, and where it is
    not known. Stored with every run."""
    windows_of_clips: bool = False
    """Whether examples are windows of longer clips: an id is the clip's name, a slash, and the
    window's. Windows of one clip resemble each other, so intervals resample whole clips; stored
    with every run."""

    def independent(self, ids: Sequence[str]) -> list[str]:
        """What the result of each example belongs to: the example, or its clip where it is a window
        of one of several.

        Standard errors are over these.
        """
        clips = [name.rpartition("/")[0] for name in ids]
        return clips if self.windows_of_clips and len(set(clips)) > 1 else [*ids]

    @abstractmethod
    def examples(self, split: Split) -> Sequence[Any]:
        """The examples of a split, each with an `id` that does not depend on order or batch."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Batch:
        """One batch, padded to its longest example, with the examples' `ids`."""

    @abstractmethod
    def losses(self, answer: Any, batch: Batch) -> Tensor:
        """f(X, Φ_l(X)) for each example, from the readout's answer at one layer."""

    @abstractmethod
    def scores(self, answer: Any, batch: Batch) -> Tensor:
        """The score of each example; the metric is computed from their mean."""

    def judge(self, answer: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses and scores together, for answers that are expensive to compute twice."""
        return self.losses(answer, batch), self.scores(answer, batch)

    @abstractmethod
    def reference_loss(self) -> float:
        """f_0 for `reference: auto`: the loss of the best constant answer on the training data."""

    def corrupted(self, split: Split, noise: TextNoise, level: float, seed: int) -> Sequence[Any]:
        """The examples of a split with noise of a level in their source texts."""
        raise UserError(
            f"{type(noise).__name__} noise changes texts, and task {type(self).__name__} has "
            "none; use other noise"
        )

    def from_texts(self, texts: Sequence[tuple[str, ...]]) -> Sequence[Any]:
        """Examples without a label from new texts; the id of each is its index."""
        raise UserError(
            f"task {type(self).__name__} does not classify texts, so there is nothing to predict "
            "for them"
        )

    def read(self, splits: Sequence[Split]) -> None:  # noqa: B027 (not every task reads its splits on demand)
        """Read the data of some splits now, so that errors in them are reported first."""

    def tested_on(self, other: Task) -> Task:
        """The same task with the test data of another one; a UserError if they do not fit it."""
        raise UserError(
            f"task {type(self).__name__} cannot be tested on other data; leave out --on"
        )

    def notes(self) -> dict[str, int]:
        """The number of examples that were cut or skipped, by kind; stored with every run."""
        return {}

    def fingerprint(self, splits: Sequence[Split]) -> str:
        """A hash of the data of some splits; empty if the recipe determines the data."""
        return ""

    def length(self, example: Any) -> int:
        """The length of an example; examples of similar length are batched together."""
        return 1

    def weights(self, batch: Batch) -> Tensor:
        """The weight of each example in a mean, such as its number of tokens; padding is never
        counted.
        """
        import torch

        return torch.ones(len(batch["ids"]))

    def thinned(self, batch: Batch, count: int, seed: int | str) -> Batch:
        """The batch with the answers of `count` tokens of each example, drawn by (seed, id); all if
        it has fewer.

        The expected mean loss is that of all tokens.
        """
        raise UserError(
            f"task {type(self).__name__} has one answer for each example, not one for each token"
        )

    def metric(self, mean_score: float) -> float:
        """The metric of a mean score."""
        return math.sqrt(mean_score) if self.metric_of_mean == "root" else mean_score

    def further_metrics(self, mean_score: float) -> dict[str, float]:
        """Other metrics of the same mean score, by name."""
        return {}

    def pictures(self, values: Tensor) -> np.ndarray[Any, Any]:
        """Inputs or answers as 8-bit grey images, (examples, frames, height, width)."""
        raise UserError(f"task {type(self).__name__} has no images")


def build_task(config: NamedSection, data_root: Path | None, pretrained: str | None) -> Task:
    """The task of a recipe; `pretrained` names the model whose tokenizer it uses."""
    task = build_unread(config, data_root, pretrained)
    task.read(SEEN)
    return task


def build_unread(config: NamedSection, data_root: Path | None, pretrained: str | None) -> Task:
    """The same; tasks that can read each split on its own have read none."""
    task: Task = plugins.implementation("task", config.name)(config, data_root, pretrained)
    return task
