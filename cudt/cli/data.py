"""`cudt data`: which data sets are available."""

from __future__ import annotations

from typing import Annotated

import typer

from cudt.cli.options import DataRoot, complete_recipe
from cudt.cli.terminal import make_console

Prepared = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RECIPE",
        help="Decode or tokenize the data of a recipe in advance. Repeatable.",
        show_default=False,
        autocompletion=complete_recipe,
    ),
]


def data(prepare: Prepared = None, data_root: DataRoot = None) -> None:
    """Show which data sets are available, which are missing, and where to get them; or prepare the
    data of a recipe.
    """
    from cudt.tasks import datasets

    console = make_console()
    for recipe in prepare or []:
        console.print(f"{recipe}: {datasets.prepare(recipe, data_root)}", soft_wrap=True)
    if not prepare:
        console.print("\n".join(datasets.lines(data_root)), soft_wrap=True, highlight=False)
