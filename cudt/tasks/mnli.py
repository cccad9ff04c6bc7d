"""MNLI: whether a premise entails a hypothesis, contradicts it, or neither (Williams et al., 2018;
in GLUE).
"""

from __future__ import annotations

from pathlib import Path

from cudt.config import tasks as sections
from cudt.data.dataset_status import DatasetStatus
from cudt.data.records import Columns, HubSet
from cudt.tasks.text_classification import TextClassification, build_text_task

SOURCE = HubSet("nyu-mll/glue", "mnli")
COLUMNS = Columns(("premise", "hypothesis"), "label")


Config = sections.Mnli


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
