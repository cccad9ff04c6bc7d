"""`cudt experiment`: train, evaluate and report in one command."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cudt.cli.eval_ood import evaluate_one
from cudt.cli.options import (
    Changes,
    DataRoot,
    Device,
    Name,
    Perturbations,
    RecipeArgument,
    SavedSamples,
    Seeds,
    Trackers,
    parse_plugins,
    parse_trackers,
)
from cudt.cli.report import write_report
from cudt.cli.terminal import make_console
from cudt.cli.train import Trained, load_recipes, train_all
from cudt.utils import processes
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.config.recipe import NamedRecipe
    from cudt.evaluation.evaluate import Grid
    from cudt.runs.run import Run

#: The comparison of the paper: without constraints, and with them.
_COMPARED = ["erm", "constrained"]

ComparedObjectives = Annotated[
    list[str] | None,
    typer.Option(
        "--objective",
        "--objectives",
        metavar="NAME...",
        help="Objectives to compare.",
        show_default=" ".join(_COMPARED),
    ),
]
ExperimentOut = Annotated[
    Path,
    typer.Option(
        help="Folder for the run folders (OUT/RECIPE) and the report (OUT/report-RECIPE)."
    ),
]


def experiment(
    recipe: RecipeArgument,
    seeds: Seeds = None,
    objectives: ComparedObjectives = None,
    set_: Changes = None,
    name: Name = None,
    perturbation: Perturbations = None,
    save_samples: SavedSamples = 0,
    track: Trackers = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    out: ExperimentOut = Path("outputs"),
) -> None:
    """Train a recipe with each seed and objective, evaluate the runs under noise, and write a
    report.

    Re-running the same command resumes: finished runs are not trained again,
    and evaluated noise levels are not evaluated again.
    """
    loaded = load_recipes(recipe, set_, objectives or _COMPARED, seeds, name)
    _refuse_without_weights(loaded[0])
    kinds, trackers = parse_plugins("--perturbation", "noise", perturbation), parse_trackers(track)
    from cudt.evaluation.evaluate import Grid
    from cudt.utils.device import choose

    _refuse_shards()
    choose(device)
    console = make_console()
    grid = Grid(perturbations=kinds or None)
    train = partial(train_all, out=out, device=device, data_root=data_root, trackers=trackers)
    trained = _train(console, loaded, grid, save_samples, train)
    for run in trained.runs:
        evaluate_one(console, run, grid, device, data_root, n_samples=save_samples)
    if trained.runs and processes.is_main_process():
        folder = loaded[0].name
        write_report(console, [out / folder], out / f"report-{folder}")
    if trained.n_stopped:
        raise typer.Exit(1)


def _refuse_without_weights(loaded: NamedRecipe) -> None:
    if not loaded.settings.checkpoints.kept:
        raise UserError(
            "checkpoints.keep: none-when-finished leaves no weights for the evaluation; "
            "set checkpoints.keep to both, best or last, or use `cudt train`"
        )


def _refuse_shards() -> None:
    from cudt.models.sharding import is_asked_for

    if is_asked_for():
        raise UserError(
            "cudt experiment: with FSDP, every process would put the whole model on its GPU to "
            "evaluate it; "
            "use `cudt train`, then `cudt eval-ood` without accelerate launch"
        )


def _train(
    console: Console,
    recipes: list[NamedRecipe],
    grid: Grid,
    n_samples: int,
    train: Callable[[Console, list[NamedRecipe]], Trained],
) -> Trained:
    """Train all runs; what cannot be evaluated is refused after the first run, not after the
    last.
    """
    from cudt.evaluation import evaluate

    runs: list[Run] = []
    for loaded in recipes:
        trained = train(console, [loaded])
        if trained.runs and not runs:
            evaluate.check(trained.runs[0], grid, n_samples)
        runs += trained.runs
    return Trained(runs, len(recipes) - len(runs))
