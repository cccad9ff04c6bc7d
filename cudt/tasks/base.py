"""The contract of a task: data, the loss f, a metric.

A task from outside is a module that recipes name by its import path. It defines `Config`, the keys
of its section in a recipe, and `build(config, data_root, pretrained)`, which returns a `Task`;
`pretrained` is the name of the model whose tokenizer a text task uses.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cudt.config import plugins
from cudt.config.schema import NamedSection
from cudt.config.tasks import TASKS
from cudt.data.hub import Status
from cudt.data.loader import Batch
from cudt.data.text import notable
from cudt.noise import TextNoise
from cudt.utils.errors import UserError

Split = Literal["train", "validation", "test"]
#: The splits that training and sweeps use. Test data are read when a run is tested.
SEEN: tuple[Split, ...] = ("train", "validation")
SPLITS: tuple[Split, ...] = (*SEEN, "test")
#: The label of a token that is not counted, as in transformers.
IGNORED = -100


class Task(ABC):
    """Examples and their batches, the loss of an answer, and the metric. The flags are stored with
    every run.
    """

    version: int
    """Increase it if the same recipe gives other data or another loss."""
    metric_name: str
    higher_is_better: bool
    metric_of_mean: Literal["mean", "root"] = "mean"
    """Whether the metric is the mean score or its square root."""
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
    """Whether the noisy input is an answer itself, as in denoising; its metric is measured, too."""
    windows_of_clips: bool = False
    """Whether an example is a window of a longer clip: its id is the clip's name, a slash, and the
    window's. Windows of a clip resemble each other, so intervals resample whole clips."""
    commit: str | None = None
    """The commit of the hub's dataset that the data come from; None where it is not known."""

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

    @abstractmethod
    def reference_loss(self) -> float:
        """f_0 for `reference: auto`: the loss of the best constant answer on the training data."""

    def judge(self, answer: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses and scores together, for answers that are expensive to compute twice."""
        return self.losses(answer, batch), self.scores(answer, batch)

    def weights(self, batch: Batch) -> Tensor:
        """The weight of each example in a mean, such as its number of tokens without padding."""
        return torch.ones(len(batch["ids"]))

    def metric(self, mean_score: float) -> float:
        """The metric of a mean score."""
        return math.sqrt(mean_score) if self.metric_of_mean == "root" else mean_score

    def further_metrics(self, mean_score: float) -> dict[str, float]:
        """Other metrics of the same mean score, by name."""
        return {}

    def length(self, example: Any) -> int:
        """The length of an example; examples of similar length are batched together."""
        return 1

    def independent(self, ids: Sequence[str]) -> list[str]:
        """What the result of each example belongs to: the example, or its clip where it is a window
        of one of several. Standard errors are over these.
        """
        clips = [name.rpartition("/")[0] for name in ids]
        return clips if self.windows_of_clips and len(set(clips)) > 1 else [*ids]

    def fingerprint(self, splits: Sequence[Split]) -> str:
        """A hash of the data of some splits; empty if the recipe determines the data."""
        return ""

    def notes(self) -> dict[str, int]:
        """The number of examples that were cut, skipped or leaked, by kind; stored with every
        run.
        """
        return dict(self._notes)

    @functools.cached_property
    def _notes(self) -> dict[str, int]:
        return {}

    def tested_on(self, other: Task) -> Task:
        """The same task with the test data of another one; a UserError if they do not fit it."""
        raise self._cannot("be tested on other data; leave out --on")

    def corrupted(self, split: Split, noise: TextNoise, level: float, seed: int) -> Sequence[Any]:
        """The examples of a split with noise of a level in their source texts."""
        raise self._cannot(f"have {type(noise).__name__} noise, which changes texts")

    def from_texts(self, texts: Sequence[tuple[str, ...]]) -> Sequence[Any]:
        """Examples without a label from new texts; the id of each is its index."""
        raise self._cannot("predict for texts, because it does not classify texts")

    def thinned(self, batch: Batch, count: int, seed: int | str) -> Batch:
        """The batch with the answers of `count` tokens of each example, drawn by (seed, id); all if
        it has fewer. The expected mean loss is that of all tokens.
        """
        raise self._cannot("leave out tokens: it has one answer for each example")

    def pictures(self, values: Tensor) -> np.ndarray[Any, Any]:
        """Inputs or answers as 8-bit grey images, (examples, frames, height, width)."""
        raise self._cannot("show images")

    def _cannot(self, what: str) -> UserError:
        return UserError(f"task {type(self).__name__} cannot {what}")


def leaked(
    split: Split, found: Sequence[Hashable], train: Iterable[Hashable], of: str = "examples"
) -> dict[str, int]:
    """Warn if examples of a split are also in the training data; their number for `Task.notes`."""
    known = set(train)
    count = sum(one in known for one in found)
    return notable(split, f"{of} that are also in the training data", count, len(found), of)


def build_task(config: NamedSection, data_root: Path | None, pretrained: str | None) -> Task:
    """The task of a recipe, which reads each split when it is first used; `pretrained` names the
    model whose tokenizer it uses.
    """
    task: Task = plugins.implementation("task", config.name)(config, data_root, pretrained)
    return task


def status_of(config: NamedSection, data_root: Path | None) -> Status | None:
    """What is on this machine of the published data of a task; None for other data."""
    status = getattr(plugins.load("task", config.name), "status", None)
    return status(config, data_root) if status else None


def published(data_root: Path | None) -> list[Status]:
    """The status of every published dataset that cudt knows, for `cudt data`."""
    keys = [{"name": name} for name in ("alpaca", "avenue", "imdb", "mnli", "shanghaitech")]
    keys += [{"name": "ucsd", "subset": subset} for subset in ("ped1", "ped2")]
    found = [status_of(TASKS[one["name"]].model_validate(one), data_root) for one in keys]
    return [one for one in found if one is not None]
