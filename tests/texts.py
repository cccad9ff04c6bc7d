"""A few short reviews as files, for tests that read a user's own data."""

from __future__ import annotations

import random
from pathlib import Path

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


def write_recipe(folder: Path, pretrained: str) -> Path:
    """A recipe for the reviews in a folder: seconds of training, every path through the code."""
    path = folder / "own.yaml"
    path.write_text(
        f"""reproduces: nothing
needs: nothing
expect: nothing
task:
  name: text
  train: train.csv
  test: test.csv
  text: review
  label: opinion
  max_length: 16
model: {{name: encoder, pretrained: {pretrained}}}
descent:
  alpha: 0.1
training:
  epochs: 2
  batch_size: 8
  learning_rate: 3e-3
  group_by_length: true
  log_every: 1
noise:
  gamma_train: 0.3
evaluation:
  gammas: [0, 0.5, 1]
  probabilities: [0, 0.1]
  perturbations: [gaussian, uniform, discrete]
""",
        encoding="utf-8",
    )
    return path
