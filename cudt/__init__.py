"""cudt trains transformers in which every layer lowers the loss, by primal-dual descent.

    recipe = cudt.load_recipe("smoke-text", {"training.epochs": 3}, objective="constrained", seed=1)
    run = cudt.train(recipe)
    cudt.evaluate(run, gammas=[0, 0.5, 1])                 # a DataFrame

    descent = cudt.LayerwiseDescent(12, alpha=0.1, reference=0.69, resilience="decay", beta=10.0)
    f = cudt.layer_losses(model, batch)                    # any model of transformers with a head
    descent.lagrangian(f).backward()
    descent.dual_step(f)

torch, pandas and pydantic are imported when a name is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from cudt.config import recipe as _recipe
    from cudt.config.recipe import NamedRecipe as NamedRecipe
    from cudt.config.schema import Dual as Dual
    from cudt.evaluation.predict import predict as predict
    from cudt.method.descent import LayerwiseDescent as LayerwiseDescent
    from cudt.models.own_head import layer_losses as layer_losses
    from cudt.runs.run import Run as Run
    from cudt.runs.run import open_run as open_run
    from cudt.utils.errors import UserError as UserError

    load_recipe = _recipe.load

__version__ = "0.1.0"

#: Where names are that are imported on first use.
_LAZY = {
    "Dual": "cudt.config.schema",
    "LayerwiseDescent": "cudt.method.descent",
    "NamedRecipe": "cudt.config.recipe",
    "Run": "cudt.runs.run",
    "UserError": "cudt.utils.errors",
    "layer_losses": "cudt.models.own_head",
    "load_recipe": "cudt.config.recipe",
    "open_run": "cudt.runs.run",
    "predict": "cudt.evaluation.predict",
}
__all__ = [*_LAZY, "evaluate", "find_runs", "train"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cudt' has no attribute {name!r}")
    defined = {"load_recipe": "load"}.get(name, name)
    return getattr(importlib.import_module(_LAZY[name]), defined)


def train(
    recipe: NamedRecipe | str | Path | Mapping[str, Any],
    out: str | Path = "outputs",
    device: str = "auto",
    data_root: str | Path | None = None,
    quiet: bool = False,
    track: Sequence[str] = (),
) -> Run:
    """Train a recipe and return its run, a folder below `out`. Calling again resumes an interrupted
    run and returns a finished one. `track` names trackers of Accelerate, such as "tensorboard".
    """
    from rich.console import Console

    from cudt.config import recipe as recipes
    from cudt.training import train as training
    from cudt.training.display import Display

    loaded = recipe if isinstance(recipe, recipes.NamedRecipe) else recipes.load(recipe)
    root = None if data_root is None else Path(data_root)
    display = Display(Console(quiet=quiet))
    return training.train(loaded, Path(out), device, root, display, track=track)


def find_runs(folder: str | Path = "outputs") -> list[Run]:
    """All runs below a folder, sorted by path."""
    from cudt.runs import run

    return [run.open_run(path) for path in run.find_runs([Path(folder)])]


def evaluate(
    run: Run | str | Path,
    gammas: str | Sequence[float] | None = None,
    perturbations: Sequence[str] | None = None,
    noise_seeds: Sequence[int] | None = None,
    *,
    probabilities: str | Sequence[float] | None = None,
    weights: Literal["best", "last"] | None = None,
    exits: bool = False,
    on: str | None = None,
    again: bool = False,
    device: str = "auto",
    data_root: str | Path | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """Evaluate a finished run on noisy test inputs, and return its rows of the table `ood`.

    `gammas` are levels of noise on embeddings or pixels, `probabilities` of noise in texts: a list,
    or text like "0:2.1:0.15". None takes the recipe's. Levels that were evaluated before are
    skipped unless `again`. `exits` also measures what early exit needs. `on` names a task or recipe
    whose test data are used instead of the run's own.
    """
    from functools import partial

    from rich.console import Console

    from cudt.config.recipe import other_data
    from cudt.evaluation.evaluate import Grid, check, evaluate_ood
    from cudt.runs.run import Run, open_run
    from cudt.utils.text import track

    opened = run if isinstance(run, Run) else open_run(run)
    opened = opened.with_weights(weights or opened.weights)
    other = None if on is None else other_data(opened.recipe.settings.task, on)
    grid = Grid(gammas, probabilities, perturbations, noise_seeds, other, exits, again=again)
    check(opened, grid)
    root, track_on = data_root and Path(data_root), partial(track, console=Console(quiet=quiet))
    with opened.locked():
        evaluate_ood(opened, grid, device, root or None, track_on)
    return grid.of(opened).rows("ood")
