"""cudt's own training of a recipe, one update in a turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.turns import Turn
from cudt.config import recipe as recipes
from cudt.training.train import train

turn = Turn()


class Turns:
    """A display that waits for the next turn after each update."""

    def __enter__(self) -> Turns:
        turn.begin()
        return self

    def __exit__(self, *exception: object) -> None: ...

    def update(self, step: int, steps: int, losses: Sequence[float]) -> None:
        if step < steps:
            turn.end()
        else:
            turn.finish()

    def validated(self, line: str) -> None: ...


job = Turn.job()
recipe = recipes.load(job["recipe"], job["overrides"], objective=job["objective"])
train(
    recipe, Path(job["folder"]), "cpu", Path(job["data_root"]), Turns()
)
