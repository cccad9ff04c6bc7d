"""MNLI: whether a premise entails a hypothesis, contradicts it, or neither (Williams et al., 2018;
in GLUE).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from cudt.data.dataset_status import DatasetStatus
from cudt.data.records import Columns, HubSet
from cudt.tasks.text_classification import Length, TextClassification, TextConfig, build_text_task

SOURCE = HubSet("nyu-mll/glue", "mnli")
COLUMNS = Columns(("premise", "hypothesis"), "label")


class Config(TextConfig):
    """Keys of MNLI. GLUE does not publish the labels of its test split, so a validation split
    serves as test data.
    """

    n_classes: ClassVar[int] = 3

    max_length: Length | None = 128
    """Most tokens of a pair; longer ones are cut. null for the model's own limit, at most 512."""
    test: Literal["validation_matched", "validation_mismatched"] = "validation_matched"
    """Split of GLUE that serves as test data: genres as in training, or other genres."""


def build(config: Config, data_root: Path | None, pretrained: str | None) -> TextClassification:
    """The task on the pairs from `<data root>/glue/mnli/` or the hub."""
    return build_text_task(
        config,
        lambda split: SOURCE.at(config.revision).read(split, COLUMNS, data_root),
        {"train": "train", "test": config.test},
        data_root,
        pretrained,
    )


def datasets(data_root: Path | None) -> list[DatasetStatus]:
    return [SOURCE.status(("train", "validation_matched"), data_root)]
