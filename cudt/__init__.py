"""cudt trains transformers in which every layer lowers the loss, by primal-dual descent.

Run experiments from recipes, as the command `cudt` does:

    import cudt

    recipe = cudt.load_recipe("smoke-text", {"training.epochs": 3}, objective="constrained", seed=1)
    run = cudt.train(recipe, out="outputs")
    cudt.evaluate(run, gammas=[0, 0.5, 1])
    run.read_table("ood")                    # a DataFrame; also: layers, history
    run = cudt.find_runs("outputs")[0]
    cudt.predict(run, ["the plot was dull but the cast was moving"]).labels

Or add the constraints to your own training loop:

    descent = cudt.LayerwiseDescent(12, alpha=0.1, reference=0.69, resilience="decay", beta=10.0)
    f = cudt.layer_losses(model, batch)                    # any model of transformers with a head
    descent.lagrangian(f).backward()
    descent.dual_step(f)

`cudt.UserError` is an error that the caller can fix: a wrong setting, missing data, a damaged file.
`cudt.utils.errors` has the others. `LayerwiseDescent` and `layer_losses` raise ValueError for wrong
arguments. `import cudt` is fast: torch, pandas and pydantic are imported when a name is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from cudt.config.recipe import NamedRecipe
    from cudt.config.schema import Dual
    from cudt.evaluation.predict import Predictions
    from cudt.method.descent import LayerwiseDescent
    from cudt.models.own_head import layer_losses
    from cudt.runs.run import Run
    from cudt.utils.errors import UserError

__version__ = "0.1.0"

__all__ = [
    "Dual",
    "LayerwiseDescent",
    "NamedRecipe",
    "Run",
    "UserError",
    "evaluate",
    "find_runs",
    "layer_losses",
    "load_recipe",
    "open_run",
    "predict",
    "train",
]

#: Names that other modules define, imported on first use.
_LAZY = {
    "Dual": "cudt.config.schema",
    "LayerwiseDescent": "cudt.method.descent",
    "NamedRecipe": "cudt.config.recipe",
    "Run": "cudt.runs.run",
    "UserError": "cudt.utils.errors",
    "layer_losses": "cudt.models.own_head",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cudt' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_recipe(
    source: str | Path | Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
    *,
    objective: str | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> NamedRecipe:
    """A validated recipe from the name of a shipped one (`cudt recipes`), a YAML file, or a
    dictionary of settings.

    `changes` maps dotted keys to values, such as `{"training.epochs": 3}`. `name` names the folder
    of its runs; the default is the name in a dictionary or of a file, or else "recipe". A
    dictionary may inherit like a file: `base` is the name of a shipped recipe, or a path from the
    current folder. All errors are reported together, as a UserError.
    """
    from cudt.config.recipe import load

    return load(source, changes, name, objective=objective, seed=seed)


def train(
    recipe: NamedRecipe | str | Path | Mapping[str, Any],
    out: str | Path = "outputs",
    device: str = "auto",
    data_root: str | Path | None = None,
    quiet: bool = False,
    track: Sequence[str] = (),
) -> Run:
    """Train a recipe and return its run, a folder below `out`.

    The same recipe is the same run: calling again resumes an interrupted run and returns a finished
    one unchanged. `track` names trackers of Accelerate that are sent its history, such as
    "tensorboard"; it is not part of the run.
    """
    from rich.console import Console

    from cudt.config.recipe import NamedRecipe
    from cudt.training import train as training
    from cudt.training.display import Display

    loaded = recipe if isinstance(recipe, NamedRecipe) else load_recipe(recipe)
    console = Console(quiet=quiet, markup=False, emoji=False)
    return training.train(
        loaded,
        Path(out),
        device,
        _data_root(data_root),
        Display(console),
        track=training.TrackingRequest(tuple([track] if isinstance(track, str) else track)),
    )


def open_run(path: str | Path) -> Run:
    """The run in a run folder. `run.read_table("ood")` and the like return its tables as
    DataFrames.
    """
    from cudt.runs import run

    return run.open_run(Path(path))


def find_runs(folder: str | Path = "outputs") -> list[Run]:
    """All runs below a folder, sorted by path. Folders that cannot be opened are skipped with a
    warning.
    """
    import warnings

    from cudt.runs import run
    from cudt.utils.errors import DataWarning, UserError

    found = []
    for path in run.find_runs([Path(folder)]):
        try:
            found.append(run.open_run(path))
        except UserError as error:
            warnings.warn(f"skipped: {error}", DataWarning, stacklevel=2)
    return found


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
    """Evaluate a finished run on noisy test inputs, and return its rows of the table `ood`: one
    metric value per row.

    `gammas` are noise levels γ for noise on embeddings or pixels, `probabilities` levels p for
    noise in texts; each is a list, or text like "0:2.1:0.15". Whatever is None comes from the run's
    recipe. Levels that were evaluated before are skipped, unless `again`. The table `layers` has
    the layers, `run.read_examples()` single examples. `exits` also measures what early exit needs.
    `on` names a task or recipe whose test data are used instead of the run's own, with the
    run's σ_x; `data` is its name in the tables.
    """
    from cudt.config.levels import GAMMA, PROBABILITY, parse_levels
    from cudt.config.other_data import named
    from cudt.evaluation.evaluate import Grid, check, evaluate_ood
    from cudt.runs.run import Run

    opened = run if isinstance(run, Run) else open_run(run)
    opened = opened.with_weights(weights or opened.weights)
    kinds = [perturbations] if isinstance(perturbations, str) else perturbations
    grid = Grid(
        None if gammas is None else parse_levels(gammas, GAMMA),
        None if probabilities is None else parse_levels(probabilities, PROBABILITY),
        None if kinds is None else [*kinds],
        None if noise_seeds is None else [*noise_seeds],
        None if on is None else named(opened.recipe.settings.task, on),
    )
    check(opened, grid, with_exits=exits)
    where = (device, _data_root(data_root), _progress(quiet))
    with opened.locked():
        evaluate_ood(opened, grid, *where, with_exits=exits, again=again)
    return grid.of(opened).rows("ood")


def predict(
    run: Run | str | Path,
    texts: Sequence[str | Sequence[str]],
    exit: str | Mapping[str, float] | None = None,  # noqa: A002 (what the literature calls it)
    *,
    device: str = "auto",
    data_root: str | Path | None = None,
) -> Predictions:
    """The class of each text that a finished run predicts. A text of a pair task is a pair of
    texts.

    With `exit`, a text leaves the model at the first layer that is sure enough, and later layers
    are not computed for it: `{"confidence": 0.9}` (the largest class probability is above 0.9), or
    "confidence" alone, for the threshold that `cudt eval-ood --exits` sets on validation data.

    Returns `labels`, `probabilities`, `classes`, and `layers`: the layer after which each text left
    the model. The model stays in memory until another run is used. The training data are needed, as
    for `evaluate`.
    """
    from cudt.evaluation.predict import predict as predicted
    from cudt.runs.run import Run

    if isinstance(texts, str):
        raise TypeError("texts must be a list of texts, not one text")
    opened = run if isinstance(run, Run) else open_run(run)
    return predicted(opened, texts, exit, device, _data_root(data_root))


def _data_root(folder: str | Path | None) -> Path | None:
    return None if folder is None else Path(folder)


def _progress(quiet: bool) -> Any:
    from functools import partial

    from rich.console import Console

    from cudt.utils.text import track

    return partial(track, console=Console(quiet=quiet, markup=False, emoji=False))
