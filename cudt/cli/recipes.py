"""`cudt recipes`: the recipes and searches that come with cudt."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from cudt.cli.terminal import make_console

app = typer.Typer()


@app.callback(invoke_without_command=True)
def list_recipes(context: typer.Context) -> None:
    """List the recipes and searches that come with cudt: what each reproduces and what it needs."""
    if context.invoked_subcommand is not None:
        return
    from cudt.config import recipe as recipes
    from cudt.sweep import definition as sweeps

    console = make_console()
    files = [(name, recipes.locate(name)) for name in recipes.names()]
    _print_groups(console, "recipe", ("reproduces", "needs"), files, recipes.folder())
    console.print("train one: cudt train --recipe NAME\n")
    searches = [(name, sweeps.locate(name)) for name in sweeps.names()]
    _print_groups(console, "search", ("reproduces",), searches, recipes.folder())
    console.print("run one: cudt sweep --search NAME")


def _print_groups(
    console: Console, what: str, keys: tuple[str, ...], files: Iterable[tuple[str, Path]], root: Path
) -> None:
    """A table for each folder, headed by its name."""
    from cudt.config import recipe as recipes

    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, path in files:
        groups.setdefault(path.parent.relative_to(root).as_posix(), []).append((name, recipes.read(path)))
    width = max(len(name) for rows in groups.values() for name, _ in rows)
    for folder, rows in groups.items():
        table = Table(box=None, padding=(0, 2, 0, 0))
        heading = what if folder == "." else f"{what}: {folder}"
        table.add_column(heading, no_wrap=True, min_width=width)
        for key in keys:
            table.add_column(key, overflow="fold", ratio=1)
        for name, values in rows:
            table.add_row(name, *(str(values.get(key, "")) for key in keys))
        console.print(table)
        console.print()
