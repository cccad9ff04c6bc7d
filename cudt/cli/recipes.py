"""`cudt recipes`: the recipes and searches that come with cudt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cudt.cli.options import Changes, RecipeArgument
from cudt.cli.terminal import make_console
from cudt.utils.errors import UserError
from cudt.utils.text import as_command, shown

if TYPE_CHECKING:
    from cudt.config.describe import KeyDoc

app = typer.Typer()
#: Keys that describe a recipe and are printed above its settings.
_DESCRIPTION = ("reproduces", "needs", "expect")


@app.callback(invoke_without_command=True)
def list_recipes(context: typer.Context) -> None:
    """List the recipes and searches that come with cudt: what each reproduces and what it needs."""
    if context.invoked_subcommand is not None:
        return
    from cudt.config import recipe as recipes

    console = make_console()
    listed = {path: recipes.read(path) for path in map(recipes.locate, recipes.names())}
    _print_groups(console, ("reproduces", "needs"), listed, recipes.folder())
    console.print("train one: cudt train --recipe NAME\n")
    searches = {
        path: recipes.read(path, "search")
        for path in (recipes.locate(name, "search") for name in recipes.names("search"))
    }
    _print_groups(console, ("reproduces",), searches, recipes.folder())
    console.print("run one: cudt sweep --search NAME")


@app.command("show", epilog="Example: cudt recipes show imdb-minilm")
def show_recipe(name: RecipeArgument, set_: Changes = None) -> None:
    """Print every setting of a recipe: its value, the default, and what it means."""
    from cudt.config import recipe as recipes
    from cudt.config.describe import describe

    if name in recipes.names("search") and name not in recipes.names():
        command = as_command("sweep", "--search", name, "--plan")
        raise UserError(f"{shown(name)} is a search, not a recipe; print its runs with `{command}`")
    loaded = recipes.load(name, set_ or ())
    values = recipes.flat(loaded.settings.model_dump(mode="json"))
    docs = describe(type(loaded.settings))
    settings = [(doc, values[doc.path]) for doc in docs if doc.path in values]
    console = make_console()
    console.print(f"{loaded.name}: {recipes.locate(name)}\n", soft_wrap=True, highlight=False)
    for doc, value in settings:
        if doc.path in _DESCRIPTION and value:
            console.print(f"{doc.path}: {value}", highlight=False)
    for doc, value in settings:
        if doc.path not in _DESCRIPTION:
            _print_setting(console, doc, value)
    console.print(
        f"\ntrain it: {as_command('train', '--recipe', name)}", soft_wrap=True, highlight=False
    )


def _print_setting(console: Console, doc: KeyDoc, value: Any) -> None:
    """`training.epochs: 3  (default 10)`, and below it what the key means and its values."""
    from cudt.config import yaml
    from cudt.config.describe import REQUIRED

    written = yaml.dump_line(value)
    default = {REQUIRED: REQUIRED, written: "default"}.get(doc.default, f"default {doc.default}")
    console.print(
        Text.assemble("\n", (doc.path, "bold"), f": {written}  ", (f"({default})", "dim")),
        soft_wrap=True,
    )
    console.print(Padding(Text(f"{doc.meaning} ({doc.values})"), (0, 0, 0, 4)))


def _print_groups(
    console: Console, keys: tuple[str, ...], files: dict[Path, dict[str, Any]], root: Path
) -> None:
    """A table for each folder of files, headed by its name."""
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for path, values in files.items():
        groups.setdefault(path.parent.relative_to(root).as_posix(), []).append((path.stem, values))
    width = max(len(name) for rows in groups.values() for name, _ in rows)
    for folder, rows in groups.items():
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column(f"recipes/{folder}", no_wrap=True, min_width=width)
        for key in keys:
            table.add_column(key, overflow="fold", ratio=1)
        for name, values in rows:
            table.add_row(name, *(str(values.get(key, "")) for key in keys))
        console.print(table)
        console.print()
