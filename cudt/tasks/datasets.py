"""The datasets that tasks read: which are available, and preparing those of a recipe. For `cudt
data`.
"""

from __future__ import annotations

from pathlib import Path

from cudt.config import plugins
from cudt.config import recipe as recipes
from cudt.data.dataset_status import DatasetStatus
from cudt.data.splits import SPLITS
from cudt.tasks.base import build_task


def find(data_root: Path | None) -> list[DatasetStatus]:
    """The status of every dataset of every task that comes with cudt."""
    modules = [plugins.load("task", name) for name in plugins.names("task")]
    return [
        status
        for module in modules
        if hasattr(module, "datasets")
        for status in module.datasets(data_root)
    ]


def lines(data_root: Path | None) -> list[str]:
    """The table of `cudt data`."""
    return [line for status in find(data_root) for line in status.lines()]


def prepare(recipe: str, data_root: Path | None) -> str:
    """Read all data of a recipe, so that they are in the caches; returns the number of examples of
    each split.
    """
    settings = recipes.load(recipe).settings
    task = build_task(settings.task, data_root, settings.model.tokenizer_source)
    return (
        ", ".join(f"{len(task.examples(split))} {split}" for split in SPLITS)
        + " examples are ready"
    )
