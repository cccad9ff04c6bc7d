"""`cudt train`: train a recipe, once for each seed and objective; `cudt experiment`: also evaluate
the runs and write a report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cudt.cli import options
from cudt.cli.report import write_report
from cudt.utils import processes
from cudt.utils.errors import TrainingStoppedError
from cudt.utils.text import as_command

if TYPE_CHECKING:
    from cudt.config.recipe import NamedRecipe
    from cudt.runs.run import Run


def train(
    recipe: options.RecipeOption,
    objective: options.Objectives = None,
    seed: options.Seeds = None,
    set_: options.Changes = None,
    name: options.Name = None,
    track: options.Trackers = None,
    device: options.Device = "auto",
    data_root: options.DataRoot = None,
    out: options.Out = Path("outputs"),
) -> None:
    """Train a recipe; with several seeds or objectives, one run after the other.

    Re-running the same command resumes an interrupted run and skips a finished one.
    """
    loaded = _load(recipe, set_, objective, seed, name)
    from cudt.training.display import verdict_table

    trained = []
    for run in _trained(loaded, out, device, data_root, track):
        options.print_table(verdict_table(run), left=["verdict"])
        options.say(_verdict(run))
        trained.append(run.path)
    if trained:
        root = [] if data_root is None else ["--data-root", data_root]
        options.say(f"next: {as_command('eval-ood', *trained, *root)}")
    if len(trained) < len(loaded):
        raise typer.Exit(1)


def experiment(
    recipe: options.RecipeArgument,
    seeds: options.Seeds = None,
    objectives: options.Objectives = None,
    set_: options.Changes = None,
    name: options.Name = None,
    save_samples: options.SavedSamples = 0,
    track: options.Trackers = None,
    device: options.Device = "auto",
    data_root: options.DataRoot = None,
    out: options.Out = Path("outputs"),
) -> None:
    """Train a recipe with each objective and seed, test the runs under noise, write a report.

    The objectives are erm and constrained, unless others are named. Re-running the same command
    resumes what was interrupted and skips what is done.
    """
    loaded = _load(recipe, set_, objectives or ["erm,constrained"], seeds, name)
    from cudt.evaluation import evaluate

    folder, runs = loaded[0].name, list["Run"]()
    grid = evaluate.Grid(n_samples=save_samples)
    options.say(f"{folder}: train {len(loaded)} runs, test each under noise, compare them")
    options.say("f: loss on validation data after each layer; λ: multiplier of its constraint")
    for run in _trained(loaded, out, device, data_root, track):
        # What cannot be evaluated is refused before another run is trained.
        evaluate.check(run, grid)
        options.say(_verdict(run))
        runs.append(run)
    if runs and processes.is_main_process():
        for run in runs:
            with run.locked():
                evaluate.evaluate_ood(run, grid, device, data_root, options.progress())
        _print_side_by_side(runs)
        write_report([out / folder], out / f"report-{folder}")
        if len({one.settings.seed for one in loaded}) == 1:
            options.say("One seed proves nothing: repeat with --seed 0,1,2.")
    if len(runs) < len(loaded):
        raise typer.Exit(1)


def _load(
    recipe: str,
    changes: options.Words,
    objectives: options.Words,
    seeds: options.Words,
    name: str | None,
) -> list[NamedRecipe]:
    """The recipe for each seed and objective; all are checked before the first one is trained."""
    wanted_seeds: list[Any] = options.parse_seeds("--seed", seeds) or [None]
    wanted: list[Any] = options.split_list(objectives) or [None]
    from cudt.config import recipe as recipes

    return [
        recipes.load(recipe, changes or (), name, objective=objective, seed=seed)
        for seed in wanted_seeds
        for objective in wanted
    ]


def _trained(
    recipes: Sequence[NamedRecipe],
    out: Path,
    device: str,
    data_root: Path | None,
    track: options.Words,
) -> Iterator[Run]:
    """Train one run after the other; one that stops does not keep the next from starting."""
    from cudt.runs.run import run_for
    from cudt.training import train as training
    from cudt.training.display import Display

    for loaded in recipes:
        run, settings = run_for(loaded, out), loaded.settings
        states = {None: "training", "finished": "already finished:"}
        doing = states.get(run.info().status, "resuming")
        options.say(f"{doing} {settings.objective}, seed {settings.seed}: {run.path}")
        try:
            yield training.train(
                *(loaded, out, device, data_root, Display(options.make_console())),
                track=options.split_list(track),
            )
        except TrainingStoppedError as error:
            options.say(f"stopped: {error}", stderr=True)


def _verdict(run: Run) -> str:
    """Whether a run keeps its constraints, and which weights that is said of."""
    info = run.finished_info()
    feasible = "feasible" if info.feasible else "not feasible"
    falls = "every" if info.monotone else "not every"
    stop = info.stopped_early
    early = f"; stopped early, after update {stop}" if stop else ""
    what = "clips" if info.windows_of_clips else "examples"
    where = f"{info.judged_on} validation {what}, {run.weights} epoch {info.best.epoch}"
    return f"{feasible}; {falls} layer lowers the loss ({where}){early}"


def _print_side_by_side(runs: Sequence[Run]) -> None:
    """The metric of each objective at each noise level on test data, averaged over seeds."""
    import pandas as pd

    objectives = [*dict.fromkeys(run.recipe.settings.objective for run in runs)]
    rows = [run.rows("ood").assign(objective=run.recipe.settings.objective) for run in runs]
    curves = pd.concat(rows).pivot_table("value", ["noise", "gamma"], "objective")[objectives]
    options.say(f"{runs[0].finished_info().metric.name} on test data, mean over seeds")
    table = curves.map("{:.4g}".format).reset_index(names=["noise", "level"])
    options.print_table(table, left=["noise"])
