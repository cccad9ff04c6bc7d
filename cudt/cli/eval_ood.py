"""`cudt eval-ood`: evaluate trained runs on perturbed test data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cudt.cli.options import (
    DataRoot,
    Device,
    EvaluatedWeights,
    Perturbations,
    RunFolders,
    SavedSamples,
    parse_plugins,
    require_folder,
)
from cudt.cli.terminal import make_console, make_error_console, progress_on
from cudt.utils import processes
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.evaluation.evaluate import Grid
    from cudt.runs.run import Run

Gammas = Annotated[
    str | None,
    typer.Option(
        help="Noise levels γ as start:stop:step or a list, for example 0:2.1:0.15 or 0,0.5,1.",
        show_default="the recipe's",
    ),
]
Probabilities = Annotated[
    str | None,
    typer.Option(
        help="Levels p of discrete noise, written like --gammas.", show_default="the recipe's"
    ),
]
NoiseSeeds = Annotated[
    list[int] | None,
    typer.Option(help="Seed of the noise. Repeatable.", show_default="the recipe's"),
]
Exits = Annotated[
    bool,
    typer.Option(
        "--exits",
        help="Also evaluate early exit: accuracy against depth and FLOPs (classification only).",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Test on the test data of another task or recipe, for example avenue, with the run's "
        "own σ_x; `data` is NAME in the tables.",
        show_default="the run's own data",
    ),
]
Again = Annotated[
    bool, typer.Option("--again", help="Evaluate levels again that the tables already have.")
]
Workers = Annotated[int, typer.Option(min=1, help="Number of runs evaluated at the same time.")]


def eval_ood(
    run: RunFolders,
    gammas: Gammas = None,
    probabilities: Probabilities = None,
    perturbation: Perturbations = None,
    noise_seed: NoiseSeeds = None,
    save_samples: SavedSamples = 0,
    weights: EvaluatedWeights = None,
    exits: Exits = False,
    on: On = None,
    again: Again = False,
    workers: Workers = 1,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Evaluate trained runs on test data perturbed at each noise level of a grid.

    Results are added to the tables in each run folder (ood.csv, layers.csv,
    examples.parquet); levels that were evaluated before are skipped.
    """
    from cudt.config.levels import PROBABILITY, parse_levels

    gamma_grid = None if gammas is None else parse_levels(gammas)
    probability_grid = None if probabilities is None else parse_levels(probabilities, PROBABILITY)
    kinds = parse_plugins("--perturbation", "noise", perturbation)
    for path in run:
        require_folder(path, "run folder")
    if workers > 1 and processes.count() > 1:
        raise UserError(
            "--workers: leave it out with torchrun or accelerate, which start the processes "
            "themselves"
        )
    from cudt.config.other_data import named
    from cudt.evaluation.evaluate import Grid, check
    from cudt.runs.run import open_run

    runs = [open_run(path, weights.value if weights else None) for path in dict.fromkeys(run)]
    grids = [
        Grid(
            gamma_grid,
            probability_grid,
            kinds or None,
            noise_seed or None,
            None if on is None else named(one.recipe.settings.task, on),
        )
        for one in runs
    ]
    for one, grid in zip(runs, grids, strict=True):
        check(one, grid, save_samples, with_exits=exits)
    options = {"n_samples": save_samples, "with_exits": exits, "again": again}
    console = make_console()
    if workers == 1:
        for one, grid in zip(runs, grids, strict=True):
            evaluate_one(console, one, grid, device, data_root, **options)
    else:
        _evaluate_shared(console, runs, grids, workers, device, data_root, options)


def evaluate_one(
    console: Console, run: Run, grid: Grid, device: str, data_root: Any, **options: Any
) -> None:
    """Evaluate a run that was checked, and print its curve."""
    from cudt.evaluation import evaluate

    with run.locked():
        is_new = evaluate.evaluate_ood(
            run, grid, device, data_root, progress_on(console), **options
        )
    if not is_new:
        console.print(f"already evaluated: {run.path} (--again repeats it)", soft_wrap=True)
    if processes.is_main_process():
        _print_result(console, run, grid, options)


def _evaluate_shared(
    console: Console,
    runs: list[Run],
    grids: list[Grid],
    n_workers: int,
    device: str,
    data_root: Any,
    options: dict[str, Any],
) -> None:
    """Let worker processes evaluate the runs; a run that fails stops no other."""
    from cudt.evaluation.workers import evaluate_all

    failed = False
    for number, error in evaluate_all(runs, grids, n_workers, device, data_root, options):
        if error is None:
            _print_result(console, runs[number], grids[number], options)
        else:
            failed = True
            text = f"error: {runs[number].path}: {error}"
            make_error_console().print(text, soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


def _print_result(console: Console, run: Run, grid: Grid, options: dict[str, Any]) -> None:
    from cudt.evaluation.display import result_table
    from cudt.evaluation.samples import folder_of

    console.print(result_table(grid.of(run), with_exits=options.get("with_exits", False)))
    console.print(f"written to {run.path / 'ood.csv'} and the tables next to it", soft_wrap=True)
    if options.get("n_samples"):
        console.print(f"pictures in {folder_of(run)}", soft_wrap=True)
