"""Tiny recipes of every kind of model, on data and weights that are written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from cudt import load_recipe
from cudt.config.recipe import NamedRecipe
from tests.instructions import write_instructions
from tests.pretrained import tiny_llama, tiny_pretrained, tiny_vision
from tests.texts import write_reviews
from tests.videos import noise, write_frames

_FEW = {"train": 12, "validation": 4, "test": 4}
_CLIPS = {"size": 16, "frames": 4, "stride": 4}
_TASKS: dict[str, dict[str, Any]] = {
    "imdb": {"max_length": 16, "limit": _FEW},
    "alpaca": {
        "file": "own.json",
        "max_length": 280,
        "validation_share": 0.2,
        "test_share": 0.2,
        "limit": _FEW,
    },
    "shapes": {**_CLIPS, "clip_length": 8, "train": 6, "validation": 2, "test": 2},
    "folder": {**_CLIPS, "train": "clips/train", "test": "clips/test"},
}
#: A task and a model, whose weights are in the folder of the data.
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("imdb", {"name": "encoder", "pretrained": "bert", "readout": "mean"}),
    "unrolled": ("imdb", {"name": "unrolled", "layers": 3, "embeddings_from": "bert"}),
    "llama lora": ("alpaca", {"name": "causal", "pretrained": "llama", "lora": {"rank": 2}}),
    "llama": (
        "alpaca",
        {"name": "causal", "pretrained": "llama", "lora": None, "gradient_checkpointing": True},
    ),
    "vit": ("shapes", {"name": "vit", "pretrained": "vit"}),
    "dust": ("folder", {"name": "dust", "layers": 2, "patch": 4, "atoms": 6}),
    "unrolled_video": ("shapes", {"name": "unrolled_video", "layers": 2, "patch": 4, "atoms": 6}),
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
    reviews = pd.read_csv(root / "train.csv")
    labels = reviews["opinion"].eq("good").astype(int)
    imdb = pd.DataFrame({"text": reviews["review"], "label": labels})
    folder = root / "imdb" / "plain_text"
    folder.mkdir(parents=True)
    for number, split in enumerate(("train", "test")):
        imdb[number::2].to_parquet(folder / f"{split}-00000-of-00001.parquet", index=False)
    for seed, (split, length) in enumerate({"train": 48, "test": 16}.items()):
        write_frames(root / "clips" / split / "walk", noise(seed, length, 16, 16), "png")
    tiny_pretrained(root / "bert", "bert")
    tiny_llama(root / "llama")
    tiny_vision(root / "vit", num_hidden_layers=2)
