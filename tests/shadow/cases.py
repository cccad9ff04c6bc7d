"""Every model, task and objective that fit together, as tiny recipes on data and weights that are written here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cudt import load_recipe
from cudt.config.recipe import NamedRecipe
from tests.instructions import write_instructions
from tests.models.test_headed import write_stored
from tests.pretrained import tiny_llama, tiny_pretrained, tiny_vision
from tests.texts import write_reviews
from tests.videos import noise, write_frames

#: Settings of the constraints, by the name of an objective in the matrix.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "erm": {},
    "supervised": {},
    "linear slack": {"form": "linear", "resilience": "slack", "beta": 1.0},
    "linear decay": {"form": "linear", "resilience": "decay", "beta": 1.0},
    "log slack": {"form": "log", "resilience": "slack", "beta": 1.0},
    "log decay": {"form": "log", "resilience": "decay", "beta": 1.0},
}
_TEXTS = {"max_length": 16, "limit": {"train": 12, "validation": 4, "test": 4}}
_CLIPS = {"size": 16, "frames": 4, "stride": 4}
TASKS: dict[str, dict[str, Any]] = {
    "imdb": _TEXTS,
    "mnli": _TEXTS,
    "text": {**_TEXTS, "train": "train.csv", "test": "test.csv", "text": "review", "label": "opinion"},
    "reviews": {"train": 12, "validation": 4, "test": 4},
    "alpaca": {
        "file": "own.json",
        "max_length": 280,
        "validation_share": 0.2,
        "test_share": 0.2,
        "limit": {"train": 12, "validation": 4, "test": 4},
    },
    "stored": {"folder": "stored", "kind": "causal", "limit": {"train": 12, "validation": 4, "test": 4}},
    "shapes": {**_CLIPS, "clip_length": 8, "train": 6, "validation": 2, "test": 2},
    "folder": {**_CLIPS, "train": "clips/train", "validation": "clips/validation", "test": "clips/test"},
}
_LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.05}
_UNROLLED = {"name": "unrolled", "layers": 3, "attention_width": 8}
#: Sections of models, by the name of a model in the matrix; ROOT is the folder of the data.
MODELS: dict[str, dict[str, Any]] = {
    **{
        family: {"name": "encoder", "pretrained": f"ROOT/{family}", "readout": readout}
        for family, readout in (("bert", "mean"), ("distilbert", "first"), ("roberta", "first"), ("modernbert", "mean"))
    },
    "bert lora": {"name": "encoder", "pretrained": "ROOT/bert", "readout": "mean", "lora": _LORA},
    "unrolled": {**_UNROLLED, "embeddings_from": "ROOT/bert"},
    "llama lora": {
        "name": "causal",
        "pretrained": "ROOT/llama",
        "lora": _LORA,
    },
    "llama": {"name": "causal", "pretrained": "ROOT/llama", "lora": None, "gradient_checkpointing": True},
    "headed bert": {"name": "headed", "pretrained": "ROOT/bert"},
    "headed llama": {"name": "headed", "pretrained": "ROOT/llama"},
    "vit": {"name": "vit", "pretrained": "ROOT/vit"},
    "vit lora": {"name": "vit", "pretrained": "ROOT/vit", "lora": _LORA},
    "dinov2": {"name": "vit", "pretrained": "ROOT/dinov2", "readout": "linear"},
    "dinov2 lora": {"name": "vit", "pretrained": "ROOT/dinov2", "readout": "linear", "lora": _LORA},
    "dust": {"name": "dust", "layers": 2, "patch": 4, "atoms": 6},
    "unrolled_video": {"name": "unrolled_video", "layers": 2, "patch": 4, "atoms": 6},
}
_TEXT_MODELS = ("bert", "distilbert", "roberta", "modernbert", "unrolled")
_VIDEO_MODELS = ("vit", "dust", "unrolled_video")
#: The models that fit each task.
FITTING: dict[str, tuple[str, ...]] = {
    "imdb": _TEXT_MODELS,
    "mnli": _TEXT_MODELS,
    "text": (*_TEXT_MODELS, "bert lora", "headed bert"),
    "reviews": ("unrolled",),
    "alpaca": ("llama lora", "llama"),
    "stored": ("headed llama",),
    "shapes": (*_VIDEO_MODELS, "vit lora", "dinov2", "dinov2 lora"),
    "folder": _VIDEO_MODELS,
}


@dataclass(frozen=True)
class Case:
    """One row of the matrix."""

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
        weights = {key: value.replace("ROOT", str(root)) for key, value in model.items() if isinstance(value, str)}
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
CASES = [Case(model, task, word) for task, models in FITTING.items() for model in models for word in OBJECTIVES]


def write_data(root: Path) -> None:
    """Write the data of every task and the weights of every pretrained model into a folder."""
    write_reviews(root)
    write_instructions(root)
    reviews = pd.read_csv(root / "train.csv")
    labels = reviews["opinion"].eq("good").astype(int)
    imdb = pd.DataFrame({"text": reviews["review"], "label": labels})
    mnli = pd.DataFrame({"premise": reviews["review"], "hypothesis": reviews["review"][::-1], "label": labels})
    for folder, frame, splits in (
        ("imdb/plain_text", imdb, ("train", "test")),
        ("glue/mnli", mnli, ("train", "validation_matched")),
    ):
        (root / folder).mkdir(parents=True)
        for number, split in enumerate(splits):
            frame[number::2].to_parquet(root / folder / f"{split}-00000-of-00001.parquet", index=False)
    for seed, (split, length) in enumerate({"train": 48, "validation": 16, "test": 16}.items()):
        write_frames(root / "clips" / split / "walk", noise(seed, length, 16, 16), "png")
    (root / "asked.json").write_text(
        json.dumps([{"instruction": "Say red."}, {"instruction": "Say it.", "input": "x"}])
    )
    for family in ("bert", "distilbert", "roberta", "modernbert"):
        tiny_pretrained(root / family, family)
    tiny_llama(root / "llama")
    write_stored(root, "causal", 12)
    tiny_vision(root / "vit", num_hidden_layers=2)
    # Tokens narrower than patches, and positions for another size of images.
    tiny_vision(root / "dinov2", "dinov2", hidden_size=32, image_size=24)
