"""The contract of a task: data, the loss f, a metric.

A task from outside is a module that recipes name by its import path. It defines `Config`, the keys
of its section in a recipe, and `build(config, data_root, pretrained)`, which returns a `Task`;
`pretrained` is the name of the model whose tokenizer a text task uses.
"""

from __future__ import annotations

import math
import warnings
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
from cudt.data.loader import Batch
from cudt.noise import TextNoise
from cudt.utils.errors import DataWarning, UserError

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

    metric_name: str
    higher_is_better: bool
    metric_of_mean: Literal["mean", "root"] = "mean"  # the mean score, or its square root
    scores_are_shares: bool = False  # scores are 0 or 1: Wilson's interval applies to their mean
    tokenizer: Any = None  # the tokenizer of its texts, if a pretrained model reads them
    has_texts: bool = False  # noise can be applied to its source texts (`corrupted`)
    has_pictures: bool = False  # inputs and answers are images: the input is scored and shown, too
    #: Whether an example is a window of a longer clip: its id is the clip's name, a slash, and the
    #: window's. Windows of a clip resemble each other, so intervals resample whole clips.
    windows_of_clips: bool = False

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

    def length(self, example: Any) -> int:
        """The length of an example; examples of similar length are batched together."""
        return 1

    def fingerprint(self, splits: Sequence[Split]) -> str:
        """A hash of the data of some splits; empty if the recipe determines the data."""
        return ""

    def tested_on(self, other: Task) -> Task:
        """The same task with the test data of another one; a UserError if they do not fit it."""
        raise UserError(f"task {type(self).__name__} cannot be tested on other data")

    def corrupted(self, split: Split, noise: TextNoise, level: float, seed: int) -> Sequence[Any]:
        """The examples of a split with noise of a level in their source texts."""
        raise NotImplementedError

    def from_texts(self, texts: Sequence[tuple[str, ...]]) -> Sequence[Any]:
        """Examples without a label from new texts; the id of each is its index."""
        raise NotImplementedError

    def thinned(self, batch: Batch, count: int, seed: int | str) -> Batch:
        """The batch with the answers of `count` tokens of each example, drawn by (seed, id); all if
        it has fewer. The expected mean loss is that of all tokens.
        """
        raise UserError("readout.tokens: this task has one answer per example; remove the key")

    def pictures(self, values: Tensor) -> np.ndarray[Any, Any]:
        """Inputs or answers as 8-bit grey images, (examples, frames, height, width)."""
        raise NotImplementedError


def warn_of_leaks(split: Split, found: Sequence[Hashable], train: Iterable[Hashable]) -> None:
    """Warn if more than 3 % of the texts or clips of a split are also in the training data."""
    known = set(train)
    count = sum(one in known for one in found)
    if count > 0.03 * len(found):
        message = f"{split} data: {count} of {len(found)} are also in the training data"
        warnings.warn(message, DataWarning, stacklevel=2)


def build_task(config: NamedSection, data_root: Path | None, pretrained: str | None) -> Task:
    """The task of a recipe, which reads each split when it is first used; `pretrained` names the
    model whose tokenizer it uses.
    """
    task: Task = plugins.implementation("task", config.name)(config, data_root, pretrained)
    return task


def missing_data(config: NamedSection, data_root: Path | None) -> str:
    """What is missing of the data of a task and how to get it; empty if nothing is. A task's module
    may define `find(config, data_root)`, which refuses missing data without reading others.
    """
    try:
        getattr(plugins.load("task", config.name), "find", lambda *_: None)(config, data_root)
    except UserError as error:
        return str(error)
    return ""


def published(data_root: Path | None) -> dict[str, str]:
    """What is missing of every published dataset that cudt knows, by its name."""
    keys = [{"name": name} for name in ("alpaca", "avenue", "imdb", "mnli", "shanghaitech")]
    keys += [{"name": "ucsd", "subset": subset} for subset in ("ped1", "ped2")]
    sections = (TASKS[one["name"]].model_validate(one) for one in keys)
    names = [" ".join(one.values()) for one in keys]
    return {name: missing_data(one, data_root) for name, one in zip(names, sections, strict=True)}
