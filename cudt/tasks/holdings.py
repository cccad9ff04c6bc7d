"""Which data sets are there, and making ready what a recipe reads: `cudt data`."""

from __future__ import annotations

from pathlib import Path

from cudt.config import recipe as recipes
from cudt.config import registry
from cudt.data.datasets import DatasetStatus
from cudt.data.splits import SPLITS
from cudt.tasks.base import build_task


def find(data_root: Path | None) -> list[DatasetStatus]:
    """Every data set that a task which comes with cudt reads."""
    modules = [registry.load("task", name) for name in registry.names("task")]
    return [holding for module in modules if hasattr(module, "holdings") for holding in module.holdings(data_root)]


def lines(data_root: Path | None) -> list[str]:
    """For each data set whether it is there, what there is, and what is missing and how to get it."""
    told = []
    for holding in find(data_root):
        status = "there" if not holding.problem else "in part" if holding.parts else "missing"
        told.append(f"{holding.name:28} {status:8} {holding.folder}")
        told += [f"    {split}: {part}" for split, part in holding.parts.items()]
        told += [f"    {holding.problem}"] if holding.problem else []
    return told


def prepare(recipe: str, data_root: Path | None) -> str:
    """Read everything that a recipe would train and be tested on, so that caches hold it; says how much it is."""
    settings = recipes.load(recipe).settings
    task = build_task(settings.task, data_root, settings.model.tokenizer_source)
    return ", ".join(f"{len(task.examples(split))} {split}" for split in SPLITS) + " examples are ready"
