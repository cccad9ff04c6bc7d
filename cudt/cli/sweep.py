"""`cudt sweep`: search a recipe's settings with many runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudt.cli import options
from cudt.utils.errors import UserError

Search = Annotated[
    str | None,
    typer.Option(help="Search (see `cudt recipes`) or YAML file. With --join: the sweep's name."),
]
SearchedRecipe = Annotated[
    str | None,
    typer.Option(
        help="Recipe to search: a name or a YAML file.",
        show_default="the search file's",
    ),
]


def sweep(
    search: Search = None,
    recipe: SearchedRecipe = None,
    join: options.Join = False,
    workers: options.Workers = 1,
    plan: options.OnlyPlan = False,
    retry_failed: options.RetryFailed = False,
    storage: options.Storage = None,
    track: options.Trackers = None,
    device: options.Device = "auto",
    data_root: options.DataRoot = None,
    out: options.Out = Path("outputs"),
) -> None:
    """Search a recipe's settings with many runs.

    Runs are scored on validation data; test data are not read. Re-running the same command resumes
    the sweep. While it is running, the same command in another terminal adds workers.
    """
    if join and (recipe or retry_failed):
        raise UserError("--join: takes part in a sweep as it is; leave out other options")
    from cudt.sweep import search as searches

    if not join:
        loaded = searches.load(options.needed("--search", search), recipe)
    from cudt.sweep import command
    from cudt.sweep.worker import SweepOptions

    if join:
        loaded = command.find(options.needed("--storage", storage), search)
    given = SweepOptions(
        *(out, device, data_root, workers, retry_failed, storage, join),
        trackers=tuple(options.split_list(track)),
    )
    if plan:
        rows = command.plan(loaded, given)
        for number, (run, state) in enumerate(rows, 1):
            options.say(f"{number:>4}  {run}  {state}")
        to_do = sum(state == "to do" for _, state in rows)
        options.say(f"{len(rows)} trials, {len(rows) - to_do} done, {to_do} to do")
        command.check(loaded, given)
        return
    folder = loaded.folder(out)
    options.say(f"sweep {loaded.name} of {loaded.recipe_name} in {folder}")
    (made,) = command.run_sweeps([loaded], folder, given, options.make_console())
    options.say(command.best_table(made))
    options.say(command.ending(made, out))
    if made.count("failed"):
        raise typer.Exit(1)
