"""How far each experiment of a reproduction is, its hours, and what is missing; runs nothing."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cudt.config.recipe import NamedRecipe, OtherData, other_data
from cudt.data import hub
from cudt.evaluation import evaluate
from cudt.evaluation.evaluate import Grid
from cudt.models.base import check_model
from cudt.reproduce.scale import Experiment, Scale
from cudt.runs.run import Run, open_run
from cudt.sweep import results
from cudt.sweep.command import known_studies
from cudt.sweep.studies import ArmStudy, own_storage
from cudt.sweep.worker import SweepOptions
from cudt.tasks.base import missing_data
from cudt.utils.errors import UserError
from cudt.utils.text import ranges


@dataclass(frozen=True)
class Progress:
    """How far an experiment is."""

    experiment: Experiment
    n_runs: int
    left: int
    """Runs that are not trained yet."""
    runs: list[Run]
    """The runs to evaluate; empty until all are trained."""
    evaluations: list[tuple[Run, Grid]]
    """What is left to evaluate."""
    failed: list[str]
    missing: list[str]
    """What the experiment cannot run without, and how to get it."""
    partly: list[str]
    """What only its completions or tests on other data are missing."""

    @property
    def is_done(self) -> bool:
        return not (self.left or self.evaluations or self.failed or self.partly)


def make(scale: Scale, options: SweepOptions) -> list[Progress]:
    """How far the experiments are, in the order in which they run."""
    url = options.storage or own_storage(options.out)
    studies = known_studies([one.sweep for one in scale.experiments], url)
    found = [_progress(*pair, options) for pair in zip(scale.experiments, studies, strict=True)]
    if scale.generated:
        # The data need not exist yet: the command generates them.
        found = [replace(one, missing=[], partly=[]) for one in found]
    return found


def _progress(experiment: Experiment, arms: list[ArmStudy], options: SweepOptions) -> Progress:
    sweep, root = experiment.sweep, options.data_root
    task, asked, partly = sweep.first_recipe.settings.task, list[OtherData | None]([None]), []
    for name in experiment.on:
        other = other_data(task, name, "on")
        if problem := missing_data(other.task, root):
            partly.append(f"on {name}: {problem}")
        else:
            asked.append(other)
    if (answers := experiment.completions) and not (file := answers.file(root)).is_file():
        how = answers.get.replace("FOLDER", shlex.quote(str(file.parent)))
        partly.append(f"completions: file {file} does not exist; {how}")
    runs, evaluations, failed = list[Run](), list[tuple[Run, Grid]](), list[str]()
    left, trials = sum(arm.n_left for arm in arms), results.wide(sweep, arms)
    if n_failed := sum(trials["state"] == "failed"):
        table = sweep.folder(options.out) / "trials_wide.csv"
        failed.append(f"{n_failed} runs: see {table}, retry them with --retry-failed")
    chosen = results.best_of_arms(trials, sweep) if experiment.evaluate == "best" else trials
    for path in chosen["run"][chosen["score"].notna()] if not left else []:
        try:
            runs.append(run := open_run(options.out / path))
            for on in asked:
                grid = Grid(
                    perturbations=experiment.perturbations,
                    on=on,
                    exits=experiment.exits,
                    # Pictures are of the run's own data.
                    n_samples=0 if on else experiment.samples,
                )
                if evaluate.missing(run, grid):
                    evaluations.append((run, grid))
        except UserError as error:
            failed.append(str(error))
    lacking, n_runs = missing(sweep.first_recipe, root), sum(arm.budget for arm in arms)
    return Progress(experiment, n_runs, left, runs, evaluations, failed, lacking, partly)


def missing(recipe: NamedRecipe, data_root: Path | None) -> list[str]:
    """What a recipe cannot be trained without, and how to get it; nothing is loaded."""
    settings, found = recipe.settings, []
    try:
        check_model(settings.model, data_root)
        if settings.model.tokenizer_source is not None:
            hub.check(settings.model.tokenizer_source, data_root)
    except UserError as error:
        found.append(str(error))
    return [*found, *filter(None, [missing_data(settings.task, data_root)])]


# ---------------------------------------------------------------- printing


def show(made: list[Progress], machine: str, console: Console) -> None:
    """Print a line for each experiment, what is missing, and what is left."""
    rows, needed = Table(box=None, padding=(0, 2, 0, 0)), dict[str, list[int]]()
    for column in ("", "name", "sweep", "runs", "hours"):
        rows.add_column(column, justify="left" if column in ("name", "sweep") else "right")
    for number, row in enumerate(made, 1):
        experiment, sweep = row.experiment, row.experiment.sweep
        marks = "*" * bool(row.missing) + "†" * bool(row.partly)
        state = "failed" if row.failed else "done" if row.is_done else _amount(experiment.hours)
        count = f"{row.n_runs - row.left}/{row.n_runs}"
        title = f"{sweep.name} · {sweep.recipe_name}"
        rows.add_row(f"{number}", experiment.name, title, count, f"{state} {marks}".rstrip())
        for item in row.missing + row.partly:
            needed.setdefault(item, []).append(number)
    console.print(rows)
    if needed:
        say(console, "missing; experiments with * are skipped, those with † run without it:")
    for item, numbers in needed.items():
        say(console, f"  for {ranges(numbers)}: {item}")
    hours = sum(row.experiment.hours for row in made if not row.is_done)
    say(console, f"{sum(row.left for row in made):,} runs to train, {_amount(hours)} hours")
    say(console, f"hours: {machine}")


def say(console: Console, text: str) -> None:
    """Print a text; the terminal breaks its lines, so that commands can be copied."""
    console.print(text, soft_wrap=True, highlight=False)


def _amount(hours: float) -> str:
    """`1,180`, `5.4` or `0.36`."""
    return f"{hours:.2g}" if hours < 10 else f"{hours:,.0f}"
