"""A few reviews and instructions as files, and a recipe that trains a tiny Llama on the latter."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from cudt.config import recipe
from cudt.config.tasks import Alpaca as AlpacaSection
from cudt.runs.run import Run
from cudt.tasks import alpaca
from cudt.tasks.alpaca import Alpaca
from cudt.training import train as training
from tests.conftest import quiet

GOOD = ("good", "great", "lovely", "moving", "fine")
BAD = ("bad", "awful", "dull", "boring", "poor")


def write_reviews(folder: Path) -> None:
    """`train.csv` with 60 reviews, sorted by opinion, and `test.csv` with 30."""
    rng = random.Random(0)
    for name, size in (("train", 60), ("test", 30)):
        opinions = ["bad" if number * 2 < size else "good" for number in range(size)]
        rows = [f'"{_review(rng, opinion == "bad")}",{opinion}' for opinion in opinions]
        (folder / f"{name}.csv").write_text("\n".join(["review,opinion", *rows, ""]))


def _review(rng: random.Random, bad: bool) -> str:
    subjects = rng.sample(("film", "plot", "story", "cast", "acting"), rng.randint(1, 3))
    clauses = [f"the {subject} was {rng.choice(BAD if bad else GOOD)}" for subject in subjects]
    return " and ".join(clauses) + "."


COLOURS = ("red", "blue", "green", "white")


def write_instructions(folder: Path, count: int = 40) -> Path:
    """`own.json`: every other instruction has an input; the answer repeats a colour."""
    rows = []
    for number in range(count):
        colour = COLOURS[number % len(COLOURS)]
        asked = (f"Repeat number {number}.", colour) if number % 2 else (f"Say {colour}.", "")
        row = (*asked, f"{colour} {colour}")
        rows.append(dict(zip(("instruction", "input", "output"), row, strict=True)))
    path = folder / "own.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def write_recipe(folder: Path, pretrained: str) -> Path:
    """A recipe for the instructions in a folder: seconds of training, every path through the code."""
    path = folder / "tiny-alpaca.yaml"
    path.write_text(f"""
task: {{name: alpaca, file: own.json, max_length: 280, validation_share: 0.2, test_share: 0.2}}
model: {{name: causal, pretrained: {pretrained}, lora: {{rank: 2, alpha: 4, dropout: 0.0}}}}
descent: {{alpha: 0.05, reference: 6.0}}
training: {{epochs: 2, batch_size: 4, optimizer: adamw, learning_rate: 3e-3, log_every: 1}}
noise: {{gamma_train: 0.25}}
evaluation: {{gammas: [0, 0.5], batch_size: 4}}
""")
    return path


def train(folder: Path, out: Path, *overrides: str, objective: str = "constrained") -> Run:
    """Train the recipe in a folder on the instructions beside it."""
    torch.set_num_threads(1)
    loaded = recipe.load(str(folder / "tiny-alpaca.yaml"), overrides, objective=objective)
    return training.train(loaded, out, "cpu", folder, quiet())


def build(folder: Path, pretrained: str, **changes: Any) -> Alpaca:
    """The task of the instructions in a folder."""
    settings = {"file": "own.json", "max_length": 400, "validation_share": 0.2, "test_share": 0.2}
    section = AlpacaSection(name="alpaca", **{**settings, **changes})
    return alpaca.build(section, folder, pretrained)
