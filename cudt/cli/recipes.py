"""`cudt recipes`, `cudt data`, `cudt doctor` and `cudt export`: what comes with cudt, what is on
this machine, and what leaves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cudt.cli import options
from cudt.utils.errors import UserError
from cudt.utils.text import as_command

app = typer.Typer()
#: A word about the line ("ok", "missing", "problem", …) and the line itself.
Finding = tuple[str, str]


# ---------------------------------------------------------------- recipes


@app.callback(invoke_without_command=True)
def list_recipes(context: typer.Context) -> None:
    """List the recipes and searches that come with cudt: what each reproduces and what it needs."""
    if context.invoked_subcommand is not None:
        return
    from cudt.config import recipe

    console, folders = options.make_console(), dict[str, list[tuple[Path, str]]]()
    for kind in ("recipe", "search"):
        for path in (recipe.locate(name, kind) for name in recipe.names(kind)):
            folder = path.parent.relative_to(recipe.folder()).as_posix()
            folders.setdefault(folder, []).append((path, kind))
    for folder, paths in folders.items():
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column(f"recipes/{folder}", no_wrap=True, min_width=28)
        table.add_column("reproduces", overflow="fold", ratio=1)
        table.add_column("needs", overflow="fold", ratio=1)
        for path, kind in paths:
            values = recipe.read(path, kind)
            table.add_row(path.stem, *(str(values.get(key, "")) for key in ("reproduces", "needs")))
        console.print(table, "")
    console.print("train a recipe: cudt train --recipe NAME")
    console.print("run a search (recipes/sweeps): cudt sweep --search NAME")


@app.command("show", epilog="Example: cudt recipes show imdb-minilm")
def show_recipe(name: options.RecipeArgument, set_: options.Changes = None) -> None:
    """Print every setting of a recipe: its value, the default, and what it means."""
    from cudt.config import recipe, yaml
    from cudt.config.describe import describe

    loaded, console = recipe.load(name, set_ or ()), options.make_console()
    values = recipe.flat(loaded.settings.model_dump(mode="json"))
    docs = describe(type(loaded.settings))
    options.say(f"{loaded.name}: {recipe.locate(name)}")
    for doc in (one for one in docs if one.path in values):
        written = yaml.dump_line(values[doc.path])
        default = "default" if written == doc.default else f"default {doc.default}"
        line = (f": {written}  ", (f"({default})".replace("default required", "required"), "dim"))
        options.say(Text.assemble("\n", (doc.path, "bold"), *line))
        console.print(Padding(Text(f"{doc.meaning} ({doc.values})"), (0, 0, 0, 4)))
    options.say(f"\ntrain it: {as_command('train', '--recipe', name)}")


# ---------------------------------------------------------------- data and doctor


def data(data_root: options.DataRoot = None) -> None:
    """Show which data sets are available, which are missing, and where to get them."""
    from cudt.tasks.base import published

    for name, problem in published(data_root).items():
        options.say(f"{name:14} {'missing: ' if problem else 'available'}{problem}")


def doctor(folders: options.Folders = None, data_root: options.DataRoot = None) -> None:
    """Show what is missing here, and unfinished or damaged runs.

    The exit code is 1 if there is a problem.
    """
    import torch

    from cudt.utils.device import choose, name_of

    options.say(f"torch {torch.__version__}, training is on {name_of(choose('auto'))}\n\nData")
    data(data_root)
    searched = folders or [folder for folder in (Path("outputs"),) if folder.is_dir()]
    has_problem = False
    for title, findings in {"Recipes": _recipes(data_root), "Runs": _runs(searched)}.items():
        options.say(f"\n{title}")
        for word, line in findings:
            has_problem |= word == "problem"
            options.say(f"{word:<12}{line}")
    raise typer.Exit(1 if has_problem else 0)


def _recipes(data_root: Path | None) -> Iterator[Finding]:
    """What recipes are missing, and those that are ready to train."""
    from cudt.config import recipe
    from cudt.reproduce import plan

    ready, lacking = [], dict[str, list[str]]()
    for name in recipe.names():
        missing = plan.missing(recipe.load(name), data_root)
        if not missing:
            ready.append(name)
        for what in missing:
            lacking.setdefault(what, []).append(name)
    for what, names in lacking.items():
        yield "missing", f"{', '.join(names)}: {what}"
    yield "ok", f"ready: {', '.join(ready)}"


def _runs(folders: list[Path]) -> Iterator[Finding]:
    """Unfinished and damaged runs, and how many there are of each kind."""
    from cudt.runs.run import LOCK_FILE, RunFolder, find_runs

    counts: Counter[str] = Counter()
    for path in find_runs(folders):
        run, status = RunFolder(path), "unfinished"
        try:
            if (path / LOCK_FILE).exists():
                FileLock(path / LOCK_FILE, timeout=0).acquire().lock.release()
            info = run.info()
            for name in info.files:
                run.check(name)
            if info.status == "finished":
                status = "finished"
            else:
                how = info.command or "repeat the command that started it"
                yield "unfinished", f"{path}: resume it: {how}"
        except Timeout:
            status = "in use"
        except UserError as error:
            status = "damaged"
            yield "problem", str(error)
        counts[status] += 1
    text = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    yield "ok", text or "none"


# ---------------------------------------------------------------- export


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    folder: Annotated[Path, typer.Argument(help="New folder for the model.")],
    weights: options.Weights = None,
    data_root: options.DataRoot = None,
) -> None:
    """Write a trained model as transformers or peft loads it, with its tokenizer and a card.

    `hf upload NAME FOLDER` puts it on the hub.
    """
    from cudt.runs.export import export as export_model
    from cudt.runs.run import open_run
    from cudt.training.train import load

    opened = open_run(run, weights)
    opened.finished_info()
    export_model(opened, load(opened, "cpu", data_root), folder)
    options.say(f"model and card in {folder}")
