"""Tiny recipes of every kind of model and task, on data and weights that are written here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cudt import load_recipe
from cudt.config.recipe import NamedRecipe
from tests.instructions import write_instructions
from tests.pretrained import tiny_llama, tiny_pretrained, tiny_vision
from tests.texts import write_reviews
from tests.videos import noise, write_frames

#: Settings of the constraints, by the name of an objective in a case.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "erm": {},
    "supervised": {},
    "linear slack": {"form": "linear", "resilience": "slack", "beta": 1.0},
    "linear decay": {"form": "linear", "resilience": "decay", "beta": 1.0},
    "log slack": {"form": "log", "resilience": "slack", "beta": 1.0},
    "log decay": {"form": "log", "resilience": "decay", "beta": 1.0},
}
_FEW = {"train": 12, "validation": 4, "test": 4}
_TEXTS = {"max_length": 16, "limit": _FEW}
_CLIPS = {"size": 16, "frames": 4, "stride": 4}
TASKS: dict[str, dict[str, Any]] = {
    "imdb": _TEXTS,
    "mnli": _TEXTS,
    "text": {
        **_TEXTS,
        "train": "train.csv",
        "test": "test.csv",
        "text": "review",
        "label": "opinion",
    },
    "reviews": _FEW,
    "alpaca": {
        "file": "own.json",
        "max_length": 280,
        "validation_share": 0.2,
        "test_share": 0.2,
        "limit": _FEW,
    },
    "shapes": {**_CLIPS, "clip_length": 8, "train": 6, "validation": 2, "test": 2},
    "folder": {
        **_CLIPS,
        "train": "clips/train",
        "validation": "clips/validation",
        "test": "clips/test",
    },
}
_UNROLLED = {"name": "unrolled", "layers": 3, "attention_width": 8}
_LLAMA = {"name": "causal", "pretrained": "ROOT/llama"}
#: Sections of models, by the name of a model in a case; ROOT is the folder of the data.
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"name": "encoder", "pretrained": "ROOT/bert", "readout": "mean"},
    "distilbert": {"name": "encoder", "pretrained": "ROOT/distilbert"},
    "roberta": {"name": "encoder", "pretrained": "ROOT/roberta"},
    "modernbert": {"name": "encoder", "pretrained": "ROOT/modernbert", "readout": "mean"},
    "unrolled": {**_UNROLLED, "embeddings_from": "ROOT/bert"},
    "llama lora": {**_LLAMA, "lora": {"rank": 2, "alpha": 4.0, "dropout": 0.05}},
    "llama": {**_LLAMA, "lora": None, "gradient_checkpointing": True},
    "vit": {"name": "vit", "pretrained": "ROOT/vit"},
    "dust": {"name": "dust", "layers": 2, "patch": 4, "atoms": 6},
    "unrolled_video": {"name": "unrolled_video", "layers": 2, "patch": 4, "atoms": 6},
}


@dataclass(frozen=True)
class Case:
    """A model, a task and an objective."""

    model: str
    task: str
    objective: str
    changes: tuple[tuple[str, Any], ...] = ()
    """Other settings, by dotted key."""

    def __str__(self) -> str:
        return f"{self.model}-{self.task}-{self.objective}".replace(" ", "-")

    def recipe(self, root: Path) -> NamedRecipe:
        """Two epochs of three updates; every second update is logged."""
        # The reviews have a vocabulary of their own.
        model = {**_UNROLLED, "width": 16} if self.task == "reviews" else MODELS[self.model]
        weights = {
            key: value.replace("ROOT", str(root))
            for key, value in model.items()
            if isinstance(value, str)
        }
        plain = self.objective in ("erm", "supervised")
        kinds = ["gaussian", "uniform", *(["discrete"] if self.task in _WITH_SOURCE_TEXTS else [])]
        return load_recipe(
            {
                "name": str(self),
                "task": {"name": self.task, **TASKS[self.task]},
                "model": {**model, **weights},
                "objective": self.objective if plain else "constrained",
                "descent": {"alpha": 0.1, "warmup_epochs": 0, **OBJECTIVES[self.objective]},
                "training": {"epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "log_every": 2},
                "noise": {"gamma_train": 0.2},
                "evaluation": {
                    "gammas": [0.0, 0.5],
                    "probabilities": [0.0, 0.1],
                    "perturbations": kinds,
                    "batch_size": 2,
                },
            },
            changes=dict(self.changes),
        )


_WITH_SOURCE_TEXTS = ("imdb", "mnli", "text", "alpaca")


def write_data(root: Path) -> None:
    """Write the data of every task and the weights of every pretrained model into a folder."""
    write_reviews(root)
    write_instructions(root)
    reviews = pd.read_csv(root / "train.csv")
    labels = reviews["opinion"].eq("good").astype(int)
    imdb = pd.DataFrame({"text": reviews["review"], "label": labels})
    mnli = pd.DataFrame(
        {"premise": reviews["review"], "hypothesis": reviews["review"][::-1], "label": labels}
    )
    for folder, frame, splits in (
        ("imdb/plain_text", imdb, ("train", "test")),
        ("glue/mnli", mnli, ("train", "validation_matched")),
    ):
        (root / folder).mkdir(parents=True)
        for number, split in enumerate(splits):
            frame[number::2].to_parquet(
                root / folder / f"{split}-00000-of-00001.parquet", index=False
            )
    for seed, (split, length) in enumerate({"train": 48, "validation": 16, "test": 16}.items()):
        write_frames(root / "clips" / split / "walk", noise(seed, length, 16, 16), "png")
    for family in ("bert", "distilbert", "roberta", "modernbert"):
        tiny_pretrained(root / family, family)
    tiny_llama(root / "llama")
    tiny_vision(root / "vit", num_hidden_layers=2)
