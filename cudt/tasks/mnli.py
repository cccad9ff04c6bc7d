"""MNLI: does a premise entail a hypothesis, contradict it, or neither? (Williams et al., 2018; GLUE)"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cudt.data.datasets import Holding
from cudt.data.records import Columns, HubSet
from cudt.tasks.text_classification import Length, TextClassification, TextConfig, build_text_task

SOURCE = HubSet("nyu-mll/glue", "mnli")
COLUMNS = Columns(("premise", "hypothesis"), "label")


class Config(TextConfig):
    """GLUE keeps the labels of MNLI's test split to itself, so one of its validation splits is the test."""

    max_length: Length | None = 128
    test: Literal["validation_matched", "validation_mismatched"] = "validation_matched"


def build(config: Config, data_root: Path | None, pretrained: str | None) -> TextClassification:
    """The pairs, from `<data root>/glue/mnli/` or the hub."""
    return build_text_task(
        config,
        lambda split: SOURCE.read(split, COLUMNS, data_root),
        {"train": "train", "test": config.test},
        data_root,
        pretrained,
    )


def holdings(data_root: Path | None) -> list[Holding]:
    return [SOURCE.holding(("train", "validation_matched"), data_root)]
