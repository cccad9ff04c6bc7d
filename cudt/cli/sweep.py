"""`cudt sweep`: search a recipe's settings with many runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudt.cli.options import (
    DataRoot,
    Device,
    Out,
    RetryFailed,
    Storage,
    Trackers,
    complete_recipe,
    parse_trackers,
    refuse_with_join,
)
from cudt.cli.terminal import make_console
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from cudt.sweep.search import Sweep
    from cudt.sweep.worker import SweepOptions

Search = Annotated[
    str | None,
    typer.Option(
        help="Search file: its name (see `cudt recipes`) or a YAML file. With --join: the name of the sweep."
    ),
]
SearchedRecipe = Annotated[
    str | None,
    typer.Option(
        help="Recipe to search: a name or a YAML file.",
        show_default="the search file's",
        autocompletion=complete_recipe,
    ),
]
Workers = Annotated[
    int, typer.Option(min=1, help="Number of runs trained at the same time, one process each.")
]
OnlyPlan = Annotated[
    bool, typer.Option("--plan", help="Print every run with its state, train nothing.")
]
Join = Annotated[
    bool,
    typer.Option("--join", help="Take part in a sweep that was begun elsewhere; needs --storage."),
]


def sweep(
    search: Search = None,
    recipe: SearchedRecipe = None,
    join: Join = False,
    workers: Workers = 1,
    plan: OnlyPlan = False,
    retry_failed: RetryFailed = False,
    storage: Storage = None,
    track: Trackers = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    out: Out = Path("outputs"),
) -> None:
    """Search a recipe's settings with many runs. Runs are scored on validation data; test data are
    not read.

    Re-running the same command resumes the sweep. While it is running, the same command elsewhere
    adds workers.
    """
    if join:
        refuse_with_join(recipe=recipe, retry_failed=retry_failed)
    loaded = _joined(search, storage) if join else _loaded(search, recipe)
    from cudt.sweep.worker import SweepOptions

    trackers = parse_trackers(track)
    options = SweepOptions(
        out, device, data_root, workers, retry_failed, storage, join, trackers=trackers
    )
    console = make_console()
    if plan:
        _print_plan(loaded, options, console)
    else:
        _run(loaded, options, console)


def _print_plan(loaded: Sweep, options: SweepOptions, console: Console) -> None:
    from cudt.sweep import command

    rows = command.plan(loaded, options)
    for number, (run, state) in enumerate(rows, 1):
        console.print(f"{number:>4}  {run}  {state}", soft_wrap=True, highlight=False)
    to_do = sum(state == "to do" for _, state in rows)
    console.print(f"{len(rows)} trials, {len(rows) - to_do} done, {to_do} to do")
    try:
        command.check(loaded, options)
    except UserError as error:
        console.print(f"missing: {error}", soft_wrap=True, highlight=False)


def _run(loaded: Sweep, options: SweepOptions, console: Console) -> None:
    from cudt.sweep.command import best_table, ending, run_sweep

    console.print(
        f"sweep {loaded.name} of {loaded.recipe_name} in {loaded.folder(options.out)}",
        soft_wrap=True,
    )
    made = run_sweep(loaded, options, console)
    console.print(best_table(made))
    console.print(ending(made, options.out), soft_wrap=True, highlight=False)
    if made.count("failed") or made.left:
        raise typer.Exit(1)


def _loaded(search: str | None, recipe: str | None) -> Sweep:
    from cudt.sweep.search import load

    if search is None:
        raise UserError(
            "--search: missing; name a search file, or take part in a running sweep with --join"
        )
    return load(search, recipe)


def _joined(search: str | None, storage: str | None) -> Sweep:
    if storage is None:
        raise UserError(
            "--join: needs --storage (or CUDT_STORAGE), the URL of the database that has the sweep"
        )
    from cudt.sweep import command

    return command.find(storage, search)
