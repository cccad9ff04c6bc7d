"""`cudt eval-ood`: evaluate trained runs on perturbed test data."""

from __future__ import annotations

from pathlib import Path
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
from cudt.cli.terminal import make_console, progress_on
from cudt.utils import processes

if TYPE_CHECKING:
    from cudt.evaluation.grid import Grid
    from cudt.runs.run import Run

Gammas = Annotated[
    str | None,
    typer.Option(
        help="Noise levels γ as start:stop:step or a list, for example 0:2.1:0.15 or 0,0.5,1.",
        show_default="the recipe's",
    ),
]
Probabilities = Annotated[
    str | None, typer.Option(help="Levels p of discrete noise, written like --gammas.", show_default="the recipe's")
]
NoiseSeeds = Annotated[
    list[int] | None, typer.Option(help="Seed of the noise. Repeatable.", show_default="the recipe's")
]
Exits = Annotated[
    bool,
    typer.Option("--exits", help="Also evaluate early exits: accuracy against depth and FLOPs (classification only)."),
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
    device: Device = "auto",
    data_root: DataRoot = None,
) -> None:
    """Evaluate trained runs on test data perturbed at each noise level of a grid.

    Results are added to the tables in each run folder (ood.csv, layers.csv, …);
    levels that were evaluated before are replaced.
    """
    from cudt.config.levels import PROBABILITY, parse_levels

    gamma_grid = parse_levels(gammas) if gammas is not None else None
    probability_grid = parse_levels(probabilities, PROBABILITY) if probabilities is not None else None
    kinds = parse_plugins("--perturbation", "noise", perturbation)
    for path in run:
        require_folder(path, "run folder")
    from cudt.evaluation.grid import Grid
    from cudt.runs.find import open_run

    grid = Grid(gamma_grid, probability_grid, kinds or None, noise_seed or None)
    runs = [open_run(path, weights.value if weights else None) for path in run]
    evaluate_all(make_console(), runs, grid, device, data_root, save_samples, exits)


def evaluate_all(
    console: Console,
    runs: list[Run],
    grid: Grid,
    device: str,
    data_root: Path | None,
    n_samples: int,
    with_exits: bool = False,
) -> None:
    """Check all runs, then evaluate one after the other and print its curve."""
    from cudt.evaluation import evaluate

    with processes.agreed():
        for run in runs:
            evaluate.check(run, grid, n_samples, with_exits=with_exits)
    for run in runs:
        with run.locked_by_main():
            evaluate.evaluate_ood(run, grid, device, data_root, progress_on(console), n_samples, with_exits=with_exits)
        if processes.is_main_process():
            _print_curve(console, run)
        if n_samples:
            console.print(f"pictures in {run.results / 'samples'}", soft_wrap=True)


def _print_curve(console: Console, run: Run) -> None:
    from cudt.evaluation.display import curve_table, descent_table, exit_table, ratio_table

    console.print(curve_table(run))
    for table in (ratio_table(run), descent_table(run), exit_table(run)):
        if table.row_count:
            console.print(table)
    console.print(f"written to {run.results / 'ood.csv'} and the tables in the same folder", soft_wrap=True)
