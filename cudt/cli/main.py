"""The command line. Heavy imports stay inside the commands, so that `cudt --help` answers at once."""

from __future__ import annotations

import sys
import warnings
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from cudt import __version__
from cudt.utils.errors import DataWarning, TrainingInterruptedError, TrainingStoppedError, UserError

if TYPE_CHECKING:
    from cudt.runs.run import Run

app = typer.Typer(
    help="Train transformers whose every layer lowers the loss, and measure how they degrade under noise.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class DeviceChoice(str, Enum):
    """The devices by name."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


DEVICE = typer.Option(DeviceChoice.auto, help="Where to compute; auto takes CUDA where there is one.")
DATA_ROOT = typer.Option(None, envvar="CUDT_DATA_ROOT", help="Folder that holds the data sets.", show_default=False)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def train(
    recipe: str = typer.Option(..., help="A recipe's name (see `cudt recipes`) or a YAML file."),
    objective: str | None = typer.Option(None, help="Instead of the recipe's own.", show_default=False),
    set_: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a setting, like training.epochs=3. Repeatable."
    ),
    seed: int | None = typer.Option(None, help="Instead of the recipe's own.", show_default=False),
    device: DeviceChoice = DEVICE,
    data_root: Path | None = DATA_ROOT,
    out: Path = typer.Option(Path("outputs"), help="Folder for the run folders."),
) -> None:
    """Train a recipe. The same recipe is the same run: an interrupted one goes on, a finished one is kept."""
    from cudt.config import recipe as recipes

    loaded = recipes.load(recipe, set_, objective=objective, seed=seed)
    from cudt.runs.run import run_for
    from cudt.training import launch
    from cudt.training.display import display_for
    from cudt.utils.device import choose
    from cudt.utils.progress import is_main_process

    launch.check_data_root(data_root)
    choose(device.value)
    console = Console(markup=False, emoji=False, quiet=not is_main_process())
    run = run_for(loaded, out)
    status = run.info().status
    if status == "finished":
        console.print(f"finished before: {run.path}", soft_wrap=True)
    elif status is not None:
        console.print(f"going on with {run.path} ({status})", soft_wrap=True)
    else:
        console.print(f"training {loaded.name} ({loaded.settings.objective}) in {run.path}", soft_wrap=True)
    _show_verdict(console, launch.train(loaded, out, device.value, data_root, display_for(console)))


def _show_verdict(console: Console, run: Run) -> None:
    from cudt.training.display import verdict_table

    info = run.finished_info()
    console.print(verdict_table(info.verdicts))
    feasible = "feasible" if info.feasible else "not feasible"
    monotone = "every layer lowers the loss" if info.monotone else "not every layer lowers the loss"
    console.print(
        f"{feasible}; {monotone} (validation data, best epoch {info.best.epoch})\nnext: cudt eval-ood {run.path}",
        soft_wrap=True,
    )


@app.command("eval-ood")
def eval_ood(
    run: list[Path] = typer.Argument(help="Run folders.", show_default=False),
    gammas: str | None = typer.Option(
        None,
        help="Levels of noise: start:stop:step or a list, like 0:2.1:0.15 or 0,0.5,1.",
        show_default="the recipe's",
    ),
    probabilities: str | None = typer.Option(
        None, help="Levels p of discrete noise, written like γ.", show_default="the recipe's"
    ),
    perturbation: list[str] = typer.Option(
        [],
        help="Kind of noise: gaussian or uniform at γ on embeddings or pixels, discrete at p in texts. Repeatable.",
        show_default="the recipe's",
    ),
    noise_seed: list[int] = typer.Option([], help="Draw of the noise. Repeatable.", show_default="the recipe's"),
    save_samples: int = typer.Option(
        0, min=0, help="Save pictures of so many test examples (video).", show_default="none"
    ),
    device: DeviceChoice = DEVICE,
    data_root: Path | None = DATA_ROOT,
) -> None:
    """Evaluate trained runs on test inputs perturbed at each level of a grid."""
    from cudt.config.levels import PROBABILITY, parse_levels

    gamma_grid = parse_levels(gammas) if gammas is not None else None
    probability_grid = parse_levels(probabilities, PROBABILITY) if probabilities is not None else None
    for path in run:
        _require_folder(path)
    from cudt.evaluation import evaluate
    from cudt.runs.run import open_run
    from cudt.training import launch

    launch.check_data_root(data_root)
    opened = [open_run(path) for path in run]
    kinds = _known_noises(perturbation)
    grid = evaluate.Grid(gamma_grid, probability_grid, kinds or None, noise_seed or None)
    for one in opened:
        evaluate.check(one, grid, save_samples)
    console = Console(markup=False, emoji=False)
    for one in opened:
        with one.locked():
            evaluate.evaluate_ood(one, grid, device.value, data_root, _progress(console), save_samples)
        _show_curve(console, one)
        if save_samples:
            console.print(f"pictures in {one.path / 'samples'}", soft_wrap=True)


@app.command()
def sweep(
    search: str = typer.Option(..., help="A search file: its name (see `cudt recipes`), or a YAML file."),
    recipe: str | None = typer.Option(
        None, help="The recipe to search: a name or a YAML file.", show_default="the search file's"
    ),
    workers: int = typer.Option(1, min=1, help="Cells that are trained at a time, each in its own process."),
    plan: bool = typer.Option(False, "--plan", help="Print every cell with its estimated cost, and stop."),
    fail_fast: bool = typer.Option(False, "--fail-fast", help="Begin no other cell after one that fails."),
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Try cells again that failed before."),
    storage: str | None = typer.Option(
        None, metavar="URL", help="An Optuna storage for the trials.", show_default="SQLite in the sweep's folder"
    ),
    device: DeviceChoice = DEVICE,
    data_root: Path | None = DATA_ROOT,
    out: Path = typer.Option(Path("outputs"), help="Folder for the run folders, and for the sweep's own."),
) -> None:
    """Search a recipe's settings: many runs, fairly. The same sweep goes on where it was; test data are not read."""
    from cudt.sweep import definition

    loaded = definition.load(search, recipe)
    from cudt.sweep import plan as plans
    from cudt.sweep.conduct import Options, conduct
    from cudt.sweep.display import SweepDisplay, best_table, ending
    from cudt.training import launch

    launch.check_data_root(data_root)
    options = Options(out, device.value, data_root, workers, storage, fail_fast, retry_failed)
    console = Console(markup=False, emoji=False)
    if plan:
        planned = plans.make(loaded, options)
        console.print(plans.table(planned))
        console.print(planned.summary(), soft_wrap=True)
        return
    console.print(f"sweep {loaded.name} of {loaded.recipe_name} in {loaded.folder(out)}", soft_wrap=True)
    made = conduct(loaded, options, SweepDisplay(console))
    console.print(best_table(made))
    console.print(ending(made, out), soft_wrap=True, highlight=False)
    if made.n_failed or made.left:
        raise typer.Exit(1)


@app.command()
def generate(
    run: list[Path] = typer.Argument(help="A run folder; or two, whose completions are also put side by side."),
    instructions: Path = typer.Option(
        ..., help="A file with a column `instruction`, and perhaps `input` and `dataset`, like AlpacaEval's."
    ),
    gamma: float = typer.Option(0.0, min=0, help="Level of noise on every token, the generated ones included."),
    noise_seed: int = typer.Option(0, help="Draw of the noise."),
    max_new_tokens: int = typer.Option(256, min=1, help="Tokens of a completion, at most."),
    batch_size: int = typer.Option(8, min=1, help="Instructions that are answered together."),
    limit: int | None = typer.Option(None, min=1, help="Answer the first so many alone.", show_default="all"),
    device: DeviceChoice = DEVICE,
    data_root: Path | None = DATA_ROOT,
) -> None:
    """Answer instructions under noise, into files that AlpacaEval reads. What is there already is kept."""
    if len(run) > 2:
        raise UserError(f"{len(run)} run folders: give one, or two to compare")
    if not instructions.is_file():
        raise UserError(f"instructions file '{instructions}' does not exist")
    for path in run:
        _require_folder(path)
    from cudt.evaluation import generate as generation
    from cudt.runs.run import open_run
    from cudt.training import launch

    launch.check_data_root(data_root)
    opened = [open_run(path) for path in run]
    if len({one.path.resolve() for one in opened}) < len(opened):
        raise UserError(f"'{run[0]}' is given twice: give two runs to compare")
    for one in opened:
        generation.check(one)
    request = generation.Request(instructions, gamma, noise_seed, max_new_tokens, batch_size, limit)
    console = Console(markup=False, emoji=False)
    written: list[Path] = []
    for one in opened:
        with one.locked():
            written.append(generation.generate(one, request, device.value, data_root, _progress(console)))
        console.print(f"completions in {written[-1]}", soft_wrap=True)
    if len(written) == 2:
        console.print(f"side by side in {generation.compare(written[0], written[1], limit)}", soft_wrap=True)


def _known_noises(kinds: list[str]) -> list[str]:
    from cudt.config import registry

    for kind in kinds:
        if why := registry.problem("noise", kind):
            raise UserError(f"--perturbation {kind}: {why}")
    return kinds


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        raise UserError(f"run folder '{path}' does not exist")


def _progress(console: Console) -> Any:
    from functools import partial

    from cudt.utils.progress import track

    return partial(track, console=console)


def _show_curve(console: Console, run: Run) -> None:
    from cudt.evaluation.display import curve_table, ratio_table

    console.print(curve_table(run))
    if (ratios := ratio_table(run)).row_count:
        console.print(ratios)
    console.print(f"in {run.path / 'ood.csv'}, layers.csv and the tables beside them", soft_wrap=True)


@app.command()
def report(
    folder: list[Path] = typer.Argument(None, help="Folders to look for runs in.", show_default="outputs"),
    out: Path = typer.Option(Path("outputs/report"), help="Where to write the report."),
) -> None:
    """Write tables (CSV, Markdown, LaTeX), figures (PNG, PDF) and one HTML page about all runs below some folders."""
    folders = folder or [Path("outputs")]
    for path in folders:
        if not path.is_dir():
            raise UserError(f"folder '{path}' does not exist")
    from cudt import report as reports
    from cudt.report.terminal import summary_table

    console = Console(markup=False, emoji=False)
    with console.status("reading runs, comparing, drawing"):
        made = reports.write(folders, out)
    for warning in made.warnings:
        console.print(f"note: {warning}", style="yellow", soft_wrap=True)
    console.print(summary_table(made.table))
    if made.verdict:
        console.print(made.verdict, highlight=False)
    sweeps = f" with {made.n_sweeps} sweep{'s' if made.n_sweeps > 1 else ''}" if made.n_sweeps else ""
    console.print(
        f"look at {made.page}{sweeps}\n     or {made.table_path}; in the paper's layout in {out / 'tables'}",
        soft_wrap=True,
    )


@app.command()
def reproduce(
    scale: str = typer.Option(..., help="smoke, cpu or full; or a YAML file like those in recipes/reproduce."),
    plan: bool = typer.Option(False, "--plan", help="Print the experiments with their estimated cost, and stop."),
    workers: int = typer.Option(1, min=1, help="Runs that are trained, or evaluated, at a time."),
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Try runs again that failed before."),
    device: DeviceChoice = DEVICE,
    data_root: Path | None = DATA_ROOT,
    out: Path | None = typer.Option(None, help="Folder for everything.", show_default="outputs/reproduce-SCALE"),
) -> None:
    """Do all of the paper's experiments in order of cost: sweeps, evaluations, report. The same command goes on."""
    from cudt.reproduce import scale as scales

    loaded = scales.load(scale)
    from cudt.reproduce import conduct
    from cudt.sweep.conduct import Options
    from cudt.training import launch

    launch.check_data_root(data_root)
    folder = out or Path("outputs") / f"reproduce-{loaded.name}"
    options = Options(folder, device.value, data_root, workers, retry_failed=retry_failed)
    console = Console(markup=False, emoji=False)
    if not conduct.reproduce(loaded, options, console, only_plan=plan):
        raise typer.Exit(1)


@app.command("recipes")
def list_recipes() -> None:
    """List the recipes and the searches that come with cudt: what each reproduces and what it needs."""
    from rich.table import Table

    from cudt.config import recipe as recipes
    from cudt.sweep import definition as sweeps

    table = Table(box=None, padding=(0, 2, 0, 0))
    searches = Table(box=None, padding=(0, 2, 0, 0))
    for listed, columns in ((table, ("recipe", "reproduces", "needs")), (searches, ("search", "reproduces"))):
        for column in columns:
            listed.add_column(column, overflow="fold", no_wrap=column in ("recipe", "search"))
    for name in recipes.names():
        values = recipes.read(recipes.locate(name))
        table.add_row(name, str(values.get("reproduces", "")), str(values.get("needs", "")))
    for name in sweeps.names():
        searches.add_row(name, str(recipes.read(sweeps.locate(name)).get("reproduces", "")))
    console = Console(markup=False, emoji=False)
    console.print(table)
    console.print("\nstart one with: cudt train --recipe NAME\n")
    console.print(searches)
    console.print("\nstart one with: cudt sweep --search NAME")


@app.command("data")
def list_data(
    prepare: list[str] = typer.Option(
        [], metavar="RECIPE", help="Decode, or cut into tokens, what a recipe reads. Repeatable.", show_default=False
    ),
    data_root: Path | None = DATA_ROOT,
) -> None:
    """Show which data sets are there, which are missing, and where they come from; prepare what a recipe reads."""
    from cudt.tasks import holdings
    from cudt.training import launch

    launch.check_data_root(data_root)
    console = Console(markup=False, emoji=False)
    for recipe in prepare:
        console.print(f"{recipe}: {holdings.prepare(recipe, data_root)}", soft_wrap=True)
    if not prepare:
        console.print("\n".join(holdings.lines(data_root)), soft_wrap=True, highlight=False)


def main() -> None:
    """Run a command; a mistake is told in a line, without a traceback, and so is a warning about data."""
    errors = Console(stderr=True, highlight=False, markup=False, emoji=False)
    _tell_data_warnings(errors)
    try:
        app()
    except (UserError, OSError) as error:
        errors.print(f"error: {error}", soft_wrap=True)
        sys.exit(2)
    except TrainingStoppedError as error:
        errors.print(f"stopped: {error}", soft_wrap=True)
        sys.exit(1)
    except TrainingInterruptedError as error:
        errors.print(str(error), soft_wrap=True)
        sys.exit(130)


def _tell_data_warnings(errors: Console) -> None:
    from cudt.utils.progress import is_main_process

    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            if is_main_process():
                errors.print(f"warning: {message}", style="yellow", soft_wrap=True)
        else:
            shown(message, category, *place, **more)

    warnings.showwarning = show
