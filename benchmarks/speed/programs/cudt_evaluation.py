"""cudt trains a run for a few updates before its first turn; then `eval-ood` of it, a batch in each
turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.speed.turns import Turn
from cudt.config import recipe as recipes
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.grid import Grid
from cudt.runs.export import export
from cudt.training.display import display_for
from cudt.training.train import load, train

turn, job = Turn(), Turn.job()
began = False


def track(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
    """Yield a batch in each turn; loading, before the first, is not counted."""
    global began
    for item in items:
        if began:
            turn.end()
        else:
            turn.begin()
        began = True
        yield item


recipe = recipes.load(job["recipe"], job["overrides"], objective="erm")
data_root = Path(job["data_root"])
display = display_for(Console(quiet=True))
run = train(recipe, Path(job["folder"]) / "runs", "cpu", data_root, display)
export(run, load(run, "cpu", data_root), run.path / "model")
Path(job["model_file"]).write_text(str(run.path / "model"), encoding="utf-8")
evaluate_ood(run, Grid(gammas=[0.0], perturbations=["gaussian"]), "cpu", data_root, track)
turn.finish(accuracy=run.read_table("ood")["value"].iloc[0])
