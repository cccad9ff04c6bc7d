"""`cudt train`: train a recipe, once for each seed and objective."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from cudt.cli.options import (
    Changes,
    DataRoot,
    Device,
    Name,
    Objectives,
    Out,
    RecipeOption,
    Seeds,
    Trackers,
    parse_plugins,
    parse_seeds,
    parse_trackers,
)
from cudt.cli.terminal import make_console, make_error_console
from cudt.utils.errors import TrainingStoppedError
from cudt.utils.text import as_command

if TYPE_CHECKING:
    from cudt.config.recipe import NamedRecipe
    from cudt.runs.run import Run


def train(
    recipe: RecipeOption,
    objective: Objectives = None,
    seed: Seeds = None,
    set_: Changes = None,
    name: Name = None,
    track: Trackers = None,
    device: Device = "auto",
    data_root: DataRoot = None,
    out: Out = Path("outputs"),
) -> None:
    """Train a recipe; with several seeds or objectives, one run after the other.

    Re-running the same command resumes an interrupted run and skips a finished one.
    """
    loaded = load_recipes(recipe, set_, objective, seed, name)
    trackers = parse_trackers(track)
    console = make_console()
    trained = train_all(console, loaded, out, device, data_root, trackers)
    if len(loaded) > 1:
        _print_summary(console, trained.runs)
    with_weights = [str(run.path) for run in trained.runs if run.recipe.settings.checkpoints.kept]
    if with_weights:
        console.print(f"next: {as_command('eval-ood', *with_weights)}", soft_wrap=True)
    if trained.n_stopped:
        raise typer.Exit(1)


def load_recipes(
    recipe: str,
    changes: list[str] | None,
    objectives: list[str] | None,
    seeds: list[str] | None,
    name: str | None = None,
) -> list[NamedRecipe]:
    """The recipe for each seed and objective; all are checked before the first one is trained."""
    wanted_seeds: list[int | None] = [*parse_seeds(seeds)] or [None]
    wanted_objectives: list[str | None] = [
        *parse_plugins("--objective", "objective", objectives)
    ] or [None]
    from cudt.config import recipe as recipes

    return [
        recipes.load(recipe, changes or (), name, objective=objective, seed=seed)
        for seed in wanted_seeds
        for objective in wanted_objectives
    ]


@dataclass(frozen=True)
class Trained:
    """The runs that finished, and the number of those that stopped with an error."""

    runs: list[Run]
    n_stopped: int


def train_all(
    console: Console,
    recipes: list[NamedRecipe],
    out: Path,
    device: str,
    data_root: Path | None,
    trackers: tuple[str, ...] = (),
) -> Trained:
    """Train one run after the other; a run that stops does not keep the next from starting."""
    finished: list[Run] = []
    for loaded in recipes:
        try:
            finished.append(_train_one(console, loaded, out, device, data_root, trackers))
        except TrainingStoppedError as error:
            make_error_console().print(f"stopped: {error}", soft_wrap=True)
    return Trained(finished, len(recipes) - len(finished))


def _print_summary(console: Console, runs: list[Run]) -> None:
    """The finished runs as `cudt runs` lists them."""
    from cudt.cli.run_list import list_runs
    from cudt.cli.runs import print_runs

    print_runs(console, list_runs([run.path for run in runs])[0])


def _train_one(
    console: Console,
    loaded: NamedRecipe,
    out: Path,
    device: str,
    data_root: Path | None,
    trackers: tuple[str, ...],
) -> Run:
    from cudt.runs.run import run_for
    from cudt.training import train as training
    from cudt.training.display import Display

    run = run_for(loaded, out)
    status = run.info().status
    if status == "finished":
        console.print(f"already finished: {run.path}", soft_wrap=True)
    elif status is not None:
        console.print(f"resuming {run.path} ({status})", soft_wrap=True)
    else:
        console.print(f"training {_describe(loaded)} in {run.path}", soft_wrap=True)
    trained = training.train(
        loaded,
        out,
        device,
        data_root,
        Display(console),
        command=shlex.join(["cudt", *sys.argv[1:]]),
        track=training.TrackingRequest(trackers),
    )
    _print_verdict(console, trained)
    return trained


def _describe(loaded: NamedRecipe) -> str:
    return f"{loaded.name} ({loaded.settings.objective}, seed {loaded.settings.seed})"


def _print_verdict(console: Console, run: Run) -> None:
    from cudt.training.display import verdict_table

    info = run.finished_info()
    console.print(verdict_table(run))
    feasible = "feasible" if info.feasible else "not feasible"
    monotone = "every layer lowers the loss" if info.monotone else "not every layer lowers the loss"
    update = f", update {info.best.step}" if run.recipe.settings.training.validate_every else ""
    where = f"validation data, {run.weights} epoch {info.best.epoch}{update}"
    console.print(f"{feasible}; {monotone} ({where})", soft_wrap=True)
    if (stop := info.stopped_early) is not None:
        epochs = run.recipe.settings.training.epochs
        console.print(
            f"stopped early in epoch {stop.epoch} of {epochs}, after update {stop.step}: no "
            "better weights in "
            f"{stop.validations} validation{'s' if stop.validations > 1 else ''}",
            soft_wrap=True,
        )
