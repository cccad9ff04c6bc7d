"""Tiny recipes of every kind of model, on data and weights that are written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cudt import load_recipe
from cudt.config.recipe import NamedRecipe
from tests.pretrained import tiny_llama, tiny_pretrained, tiny_vision
from tests.texts import write_instructions, write_reviews

_FILES = {"train": "train.csv", "test": "test.csv", "text": "review", "label": "opinion"}
_LIMIT = {"limit": {"train": 12, "validation": 4, "test": 4}}
_SHARES = {"validation_share": 0.2, "test_share": 0.2}
_CLIPS = {"size": 16, "frames": 4, "stride": 4, "clip_length": 8}
_TASKS: dict[str, dict[str, Any]] = {
    "text": {**_FILES, "max_length": 16, **_LIMIT},
    "alpaca": {"file": "own.json", "max_length": 280, **_SHARES, **_LIMIT},
    "shapes": {**_CLIPS, "train": 6, "validation": 2, "test": 2},
}
_SMALL = {"layers": 2, "patch": 4, "atoms": 6}
_WHOLE: dict[str, Any] = {"lora": None, "gradient_checkpointing": True}
#: A task and a model, whose weights are in the folder of the data.
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("text", {"name": "encoder", "pretrained": "bert", "readout": "mean"}),
    "unrolled": ("text", {"name": "unrolled", "layers": 3, "embeddings_from": "bert"}),
    "llama lora": ("alpaca", {"name": "causal", "pretrained": "llama", "lora": {"rank": 2}}),
    "llama": ("alpaca", {"name": "causal", "pretrained": "llama", **_WHOLE}),
    "vit": ("shapes", {"name": "vit", "pretrained": "vit"}),
    "dust": ("shapes", {"name": "dust", **_SMALL}),
    "unrolled_video": ("shapes", {"name": "unrolled_video", **_SMALL}),
}


def recipe_of(case: str, root: Path, *changes: str) -> NamedRecipe:
    """Two epochs of three updates; every second update is logged."""
    task, model = _CASES[case]
    weights = {
        key: str(root / model[key]) for key in model.keys() & {"pretrained", "embeddings_from"}
    }
    return load_recipe(
        {
            "task": {"name": task, **_TASKS[task]},
            "model": {**model, **weights},
            "training": {"epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "log_every": 2},
            "noise": {"gamma_train": 0.2},
            "evaluation": {"batch_size": 2},
        },
        changes,
    )


def write_data(root: Path) -> None:
    """Write the data of every task and the weights of every pretrained model into a folder."""
    write_reviews(root)
    write_instructions(root)
    tiny_pretrained(root / "bert", "bert")
    tiny_llama(root / "llama")
    tiny_vision(root / "vit", num_hidden_layers=2)
