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
    from cudt.config import recipe as recipes
    from cudt.tasks.base import SPLITS, build_task, published

    console = make_console()
    for recipe in prepare or []:
        settings = recipes.load(recipe).settings
        task = build_task(settings.task, data_root, settings.model.tokenizer_source)
        counts = ", ".join(f"{len(task.examples(split))} {split}" for split in SPLITS)
        console.print(f"{recipe}: {counts} examples are ready", soft_wrap=True)
    for name, problem in ({} if prepare else published(data_root)).items():
        line = f"{name:14} {'missing: ' if problem else 'available'}{problem}"
        console.print(line, soft_wrap=True, highlight=False)
