"""`cudt runs`: a table of runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cudt.cli.options import Folders, require_folder
from cudt.cli.terminal import make_console, make_error_console

if TYPE_CHECKING:
    from cudt.cli.run_list import ListedRun

#: Explains the column `verdict`.
_LEGEND = "verdict: feasible (every constraint is met or borderline), monotone (every layer lowers the loss), both or neither"
AsCsv = Annotated[bool, typer.Option("--csv", help="Print all columns as CSV.")]


def runs(folder: Folders = None, as_csv: AsCsv = False) -> None:
    """List runs: recipe, model, what sets each one apart, seed, objective, status, scores, verdict
    and age.

    The score is the metric at γ_train on validation data; OOD is its mean over higher noise levels
    on test data.
    """
    folders = folder or [Path("outputs")]
    for path in folders:
        require_folder(path)
    from cudt.cli import run_list

    listed, problems = run_list.list_runs(folders)
    for problem in problems:
        make_error_console().print(f"warning: {problem}", style="yellow", soft_wrap=True)
    if as_csv:
        typer.echo(_as_csv(listed), nl=False)
        return
    console = make_console()
    print_runs(console, listed)
    console.print(f"{len(listed) or 'no'} run{'' if len(listed) == 1 else 's'}", highlight=False)


def print_runs(console: Console, listed: list[ListedRun]) -> None:
    """Print a table for each recipe, with a row for each run."""
    for heading, table in _tables(listed):
        console.print(heading, highlight=False)
        console.print(table)
    if any(run.feasible is not None for run in listed):
        console.print(_LEGEND, highlight=False)


def _tables(listed: list[ListedRun]) -> Iterator[tuple[str, Table]]:
    """A heading and a table for each recipe, with a row for each run."""
    by_recipe: dict[str, list[ListedRun]] = {}
    for run in listed:
        by_recipe.setdefault(run.recipe, []).append(run)
    for recipe, mine in by_recipe.items():
        models = {run.model for run in mine}
        metrics = sorted({run.metric for run in mine if run.metric})
        model = mine[0].model if len(models) == 1 else f"{len(models)} models"
        yield (
            f"{recipe}: {model}" + (f", score is {' or '.join(metrics)}" if metrics else ""),
            _table(mine),
        )


def _table(listed: list[ListedRun]) -> Table:
    """A row for each run; columns in which all rows are empty are left out."""
    from cudt.cli.run_list import utc_now

    now = utc_now()
    has_one_model = len({run.model for run in listed}) == 1
    rows = [_cells(run, run.age(now), has_one_model) for run in listed]
    shown = [name for name in rows[0] if any(row[name] for row in rows)]
    numbers = ("seed", "score", "OOD", "age")
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in shown:
        # In a narrow terminal words may wrap; numbers and the folder, which is copied into other
        # commands, may not.
        is_whole = name in numbers or name in ("run", "verdict")
        table.add_column(
            name, justify="right" if name in numbers else "left", no_wrap=is_whole, overflow="fold"
        )
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    return table


def _cells(run: ListedRun, age: str, has_one_model: bool) -> dict[str, str]:
    # The folder is called after the objective.
    is_in_name = run.path.name.startswith(f"{run.objective}-")
    return {
        "run": run.path.name,
        "objective": "" if is_in_name else run.objective,
        "model": "" if has_one_model else run.model,
        "variant": run.variant,
        "seed": _text(run.seed),
        "status": run.status,
        "score": _number(run.score),
        "OOD": _number(run.ood),
        "verdict": run.verdict,
        "age": age,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _as_csv(listed: list[ListedRun]) -> str:
    from cudt.cli.run_list import COLUMNS

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_text(getattr(run, name)) for name in COLUMNS] for run in listed)
    return file.getvalue()
