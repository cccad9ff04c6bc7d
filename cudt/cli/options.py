"""What several commands share: options, lists of values, consoles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cudt.utils.errors import UserError
from cudt.utils.processes import is_main_process
from cudt.utils.text import brief, track

if TYPE_CHECKING:
    import pandas as pd


_RECIPE = "Recipe name (see `cudt recipes`) or YAML file."
Words = list[str] | None

RecipeOption = Annotated[str, typer.Option("--recipe", help=_RECIPE)]
RecipeArgument = Annotated[str, typer.Argument(help=_RECIPE)]
RunFolders = Annotated[list[Path], typer.Argument(help="Run folders.")]
Folders = Annotated[list[Path] | None, typer.Argument(help="Folders to search; default outputs.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …; auto takes an accelerator if any.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        envvar="CUDT_DATA_ROOT",
        help="Folder that holds the data sets.",
        exists=True,
        file_okay=False,
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for the run folders.")]
Changes = Annotated[
    Words,
    typer.Option("--set", metavar="KEY=VALUE", help="Like training.epochs=3. Repeatable."),
]
Name = Annotated[str | None, typer.Option(help="Name of the experiment: its folder below --out.")]
Seeds = Annotated[
    Words, typer.Option("--seed", "--seeds", metavar="N,...", help="Seeds, for example 0,1,2.")
]
Objectives = Annotated[
    Words,
    typer.Option(
        "--objective", "--objectives", metavar="NAME,...", help="For example erm,constrained."
    ),
]
Perturbations = Annotated[
    Words, typer.Option(metavar="KIND,...", help="Noise: gaussian, uniform, discrete (in texts).")
]
Trackers = Annotated[
    Words, typer.Option(metavar="NAME,...", help="Trackers of Accelerate, like tensorboard,wandb.")
]
Weights = Annotated[
    Literal["best", "last"] | None, typer.Option(help="Weights of the best or the last epoch.")
]
OnData = Annotated[
    str | None, typer.Option("--on", help="Test data of another task or recipe, such as avenue.")
]
SavedSamples = Annotated[
    int, typer.Option(min=0, help="Number of test examples to save as pictures (video only).")
]
Storage = Annotated[
    str | None,
    typer.Option(
        envvar="CUDT_STORAGE",
        help="Database for the trials: postgresql:// or sqlite:///. Others can read a command line: "
        "put a password into CUDT_STORAGE, PGPASSWORD or ~/.pgpass.",
    ),
]
Join = Annotated[
    bool, typer.Option("--join", help="Add workers to what another machine began; needs --storage.")
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Train runs again that failed before.")
]
OnlyPlan = Annotated[bool, typer.Option("--plan", help="Print what would run, and run nothing.")]
Workers = Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")]


# ---------------------------------------------------------------- values


def split_list(values: Words) -> list[str]:
    """The values of a list option, each once: repeated, or separated by commas."""
    parts = [part.strip() for value in values or [] for part in value.split(",")]
    return list(dict.fromkeys(part for part in parts if part))


def parse_seeds(option: str, values: Words) -> list[int]:
    """The values of an option that lists seeds."""
    try:
        return [*map(int, split_list(values))]
    except ValueError:
        given = brief(",".join(values or []))
        raise UserError(f"{option} {given}: expected integers, for example 0,1,2") from None


def needed(option: str, value: str | None) -> str:
    """The value of an option that cannot be left out here."""
    if value is None:
        raise UserError(f"{option}: missing; see --help")
    return value


# ---------------------------------------------------------------- consoles


def make_console(*, stderr: bool = False) -> Console:
    """Standard output or error, on which only the main process of several prints."""
    hidden = not is_main_process()
    return Console(stderr=stderr, quiet=hidden, highlight=False, markup=False, emoji=False)


def say(text: str | Text, *, stderr: bool = False) -> None:
    """Print a text that the terminal wraps where it likes, so that paths can be copied."""
    make_console(stderr=stderr).print(text, soft_wrap=True)


def print_table(rows: pd.DataFrame, left: Sequence[str] = ()) -> None:
    """Print a table of texts, aligned right but for the columns on the `left`."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in rows.columns:
        # Words may wrap in a narrow terminal; numbers, and names that are copied, may not.
        is_whole = name == "run" or name not in left
        justify: Any = "left" if name in left else "right"
        table.add_column(name, justify=justify, no_wrap=is_whole, overflow="fold")
    for row in rows.astype(object).fillna("").astype(str).to_numpy():
        table.add_row(*row)
    make_console().print(table)


def progress() -> Any:
    """A `track` function that draws its progress bar on standard output."""
    return partial(track, console=make_console())
