"""`cudt eval-ood`: evaluate trained runs on perturbed test data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
    from cudt.evaluation.grid import EvaluationRequest
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
        help="Also evaluate early exits: accuracy against depth and FLOPs (classification only).",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Test on the test data of another task or recipe, for example avenue, with the run's own σ_x; "
        "results go to the subfolder on-NAME.",
        show_default="the run's own data",
    ),
]
Workers = Annotated[
    int, typer.Option(min=1, help="Number of runs evaluated at the same time, one process each.")
]


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
    workers: Workers = 1,
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Evaluate trained runs on test data perturbed at each noise level of a grid.

    Results are added to the tables in each run folder (ood.csv, layers.csv, …);
    levels that were evaluated before are replaced.
    """
    from cudt.config.levels import PROBABILITY, parse_levels

    gamma_grid = parse_levels(gammas) if gammas is not None else None
    probability_grid = (
        parse_levels(probabilities, PROBABILITY) if probabilities is not None else None
    )
    kinds = parse_plugins("--perturbation", "noise", perturbation)
    for path in run:
        require_folder(path, "run folder")
    from cudt.evaluation.grid import EvaluationRequest, Grid
    from cudt.runs.find import open_run

    grid = Grid(gamma_grid, probability_grid, kinds or None, noise_seed or None)
    request = EvaluationRequest(grid, device, data_root, save_samples, exits)
    runs = [
        _on(open_run(path, weights.value if weights else None), on) for path in dict.fromkeys(run)
    ]
    if workers == 1:
        evaluate_all(make_console(), runs, request)
    else:
        _evaluate_shared(make_console(), runs, request, workers)


def _on(run: Run, name: str | None) -> Run:
    """The run with the test data of another task or recipe, if one is named."""
    from cudt.tasks import other_data

    return run if name is None else run.on(other_data.named(run.recipe.settings.task, name))


def evaluate_all(console: Console, runs: list[Run], asked: EvaluationRequest) -> None:
    """Check all runs, then evaluate one after the other and print its curve."""
    from cudt.evaluation import evaluate

    _check(runs, asked)
    for run in runs:
        with run.locked_by_main():
            evaluate.evaluate_ood(
                run,
                asked.grid,
                asked.device,
                asked.data_root,
                progress_on(console),
                asked.n_samples,
                with_exits=asked.with_exits,
            )
        if processes.is_main_process():
            _print_result(console, run, asked.n_samples)


def _evaluate_shared(
    console: Console, runs: list[Run], asked: EvaluationRequest, n_workers: int
) -> None:
    """Check all runs, let worker processes evaluate them, and print the curves; a run that fails
    stops no other.
    """
    from cudt.evaluation.workers import evaluate_runs

    if processes.count() > 1:
        raise UserError(
            "--workers: leave it out with torchrun or accelerate, which start the processes "
            "themselves"
        )
    _check(runs, asked)
    failed = evaluate_runs(runs, asked, n_workers, progress_on(console))
    for run in runs:
        if run.path not in failed:
            _print_result(console, run, asked.n_samples)
    for path, reason in failed.items():
        make_error_console().print(f"error: {path}: {reason}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _check(runs: list[Run], asked: EvaluationRequest) -> None:
    from cudt.evaluation import evaluate

    for run in runs:
        evaluate.check(run, asked.grid, asked.n_samples, with_exits=asked.with_exits)


def _print_result(console: Console, run: Run, n_samples: int) -> None:
    from cudt.evaluation.display import curve_table, descent_table, exit_table, ratio_table

    console.print(curve_table(run))
    for table in (ratio_table(run), descent_table(run), exit_table(run)):
        if table.row_count:
            console.print(table)
    console.print(
        f"written to {run.results / 'ood.csv'} and the tables in the same folder", soft_wrap=True
    )
    if n_samples:
        console.print(f"pictures in {run.results / 'samples'}", soft_wrap=True)
