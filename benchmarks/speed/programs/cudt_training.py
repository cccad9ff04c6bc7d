"""cudt's own training of a recipe, one update in a turn."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed.turns import Turn
from cudt.config import recipe as recipes
from cudt.training import launch
from cudt.training.view import TrainingView

turn = Turn()


class Turns:
    """A display that waits for the next turn after each update."""

    def __enter__(self) -> Turns:
        turn.begin()
        return self

    def __exit__(self, *exception: object) -> None: ...

    def update(self, view: TrainingView) -> None:
        if view.step < view.steps:
            turn.end()
        else:
            turn.finish()

    def epoch_ended(self, view: TrainingView, metric: str) -> None: ...


job = Turn.job()
recipe = recipes.load(job["recipe"], job["overrides"], objective=job["objective"])
launch.train(
    recipe, Path(job["folder"]), "cpu", Path(job["data_root"]), Turns(), export_model=False
)
