"""`cudt sweep`: search a recipe's settings with many runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudt.cli import completion
from cudt.cli.options import DataRoot, Device, Out, RetryFailed
from cudt.cli.terminal import make_console

Search = Annotated[
    str,
    typer.Option(help="Search file: its name (see `cudt recipes`) or a YAML file.", autocompletion=completion.searches),
]
SearchedRecipe = Annotated[
    str | None,
    typer.Option(
        help="Recipe to search: a name or a YAML file.",
        show_default="the search file's",
        autocompletion=completion.recipes,
    ),
]
Workers = Annotated[int, typer.Option(min=1, help="Number of runs trained at the same time, one process each.")]
OnlyPlan = Annotated[bool, typer.Option("--plan", help="Print every run with its estimated cost, train nothing.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Start no more runs after one has failed.")]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Optuna storage for the trials.", show_default="an SQLite file in the sweep's folder"
    ),
]


def sweep(
    search: Search,
    recipe: SearchedRecipe = None,
    workers: Workers = 1,
    plan: OnlyPlan = False,
    fail_fast: FailFast = False,
    retry_failed: RetryFailed = False,
    storage: Storage = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    out: Out = Path("outputs"),
) -> None:
    """Search a recipe's settings with many runs. Runs are scored on validation data; test data are not read.

    Re-running the same command resumes the sweep.
    """
    from cudt.sweep import definition

    loaded = definition.load(search, recipe)
    from cudt.sweep import plan as plans
    from cudt.sweep.display import SweepDisplay, best_table, ending
    from cudt.sweep.run_sweep import SweepOptions, run_sweep

    options = SweepOptions(out, device, data_root, workers, retry_failed, storage, fail_fast)
    console = make_console()
    if plan:
        planned = plans.make(loaded, options)
        console.print(plans.table(planned))
        console.print(planned.summary(), soft_wrap=True)
        return
    console.print(f"sweep {loaded.name} of {loaded.recipe_name} in {loaded.folder(out)}", soft_wrap=True)
    made = run_sweep(loaded, options, SweepDisplay(console))
    console.print(best_table(made))
    console.print(ending(made, out), soft_wrap=True, highlight=False)
    if made.n_failed or made.left:
        raise typer.Exit(1)
