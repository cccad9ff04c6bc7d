"""Options that several commands share, and option values given as lists."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from cudt.utils import processes
from cudt.utils.errors import DataWarning, TrainingInterruptedError, UserError, signal_of
from cudt.utils.text import as_command, brief, shown


class WeightsChoice(str, Enum):
    """Values of --weights."""

    best = "best"
    last = "last"


def complete_recipe(incomplete: str) -> list[str]:
    """Recipe names and YAML files for the shell's completion; nothing heavy is imported, because
    the shell waits.
    """
    from cudt.config import recipe

    files = [str(path) for path in Path().glob("*.yaml")]
    return [name for name in (*recipe.names(), *sorted(files)) if name.startswith(incomplete)]


def _warn_about_password(context: typer.Context, url: str | None) -> str | None:
    # A pattern, because the libraries of databases take a second to import.
    has_password = re.search(r"//[^@]*:[^@]*@|[?&]\w*passw\w*=", url or "")
    if (
        has_password
        and getattr(context.get_parameter_source("storage"), "name", "") == "COMMANDLINE"
    ):
        message = (
            "--storage: other users of this machine can read a password on the command line; put "
            "the URL into "
            "CUDT_STORAGE, or the password into PGPASSWORD or ~/.pgpass"
        )
        warnings.warn(message, DataWarning, stacklevel=2)
    return url


Device = Annotated[
    str,
    typer.Option(
        metavar="[auto|cpu|cuda|...]",
        help="Device to compute on: cpu, or an accelerator that torch finds. auto uses the accelerator if any.",
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        envvar="CUDT_DATA_ROOT",
        help="Folder that holds the data sets.",
        show_default=False,
        exists=True,
        file_okay=False,
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for the run folders.")]
RecipeOption = Annotated[
    str,
    typer.Option(
        "--recipe",
        help="Recipe name (see `cudt recipes`) or YAML file.",
        autocompletion=complete_recipe,
    ),
]
RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="Recipe name (see `cudt recipes`) or YAML file.", autocompletion=complete_recipe
    ),
]
RunFolders = Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, for example training.epochs=3. Repeatable.",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="Name of the experiment: its folder below --out.",
        show_default="the recipe's",
    ),
]
Seeds = Annotated[
    list[str] | None,
    typer.Option(
        "--seed",
        "--seeds",
        metavar="SEED...",
        help="Seeds to train, for example 0 1 2.",
        show_default="the recipe's",
    ),
]
Objectives = Annotated[
    list[str] | None,
    typer.Option(
        "--objective",
        "--objectives",
        metavar="NAME...",
        help="Objectives to train, for example erm constrained.",
        show_default="the recipe's",
    ),
]
Perturbations = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND...",
        help="Noise: gaussian or uniform at level γ on embeddings or pixels, discrete at level p in texts.",
        show_default="the recipe's",
    ),
]
Folders = Annotated[
    list[Path] | None, typer.Argument(help="Folders to search for runs.", show_default="outputs")
]
Trackers = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME,...",
        help="Trackers to log to, for example tensorboard,wandb: any that Accelerate has and that is installed.",
        show_default=False,
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="CUDT_STORAGE",
        help="Database for the trials: postgresql:// or sqlite:///.",
        callback=_warn_about_password,
        show_default="an SQLite file in the folder of the results",
    ),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Train runs again that failed before.")
]
EvaluatedWeights = Annotated[
    WeightsChoice | None,
    typer.Option(
        "--weights",
        help="Weights of the best or of the last epoch; the column `weights` of the tables.",
        show_default="the run's own (training.select)",
    ),
]
SavedSamples = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Save pictures of N test examples (video only).",
        show_default="none",
    ),
]


# ---------------------------------------------------------------- lists of values


#: A seed is below 2³².
_MOST_DIGITS = 10


def _is_seed(word: str) -> bool:
    return word.replace(",", "").isdecimal()


def _is_plugin(kind: str) -> Callable[[str], bool]:
    def is_known(word: str) -> bool:
        from cudt.config import plugins

        try:
            for name in word.split(","):
                plugins.check(kind, name)
        except UserError:
            return False
        return True

    return is_known


#: Options that take a list, and whether a word can be one of their values: a recipe or a run folder
#: may follow.
_LISTS: dict[str, Callable[[str], bool]] = {
    "--seed": _is_seed,
    "--seeds": _is_seed,
    "--objective": _is_plugin("objective"),
    "--objectives": _is_plugin("objective"),
    "--perturbation": _is_plugin("noise"),
    "--noise-seed": str.isdecimal,
}


class ListCommand(TyperCommand):
    """A command where `--seed 0 1` means the same as `--seed 0 --seed 1`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line with lists written out as repeated options."""
        if strange := [word for word in args if re.search("[\ud800-\udfff]", word)]:
            # cudt's files record folders and commands as UTF-8.
            raise UserError(f"{shown(strange[0], 300)}: not valid UTF-8; rename the file or folder")
        return super().parse_args(ctx, repeat_options(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C and SIGTERM end it with a line, as they end training."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise TrainingInterruptedError(
                "interrupted; run the same command again", signal_of(error)
            ) from None


class LonelyCommand(ListCommand):
    """A command that one process runs, also where a launcher starts several."""

    def invoke(self, ctx: Any) -> Any:
        """Refuse to do the same work several times at once."""
        if processes.count() > 1:
            raise UserError(
                f"cudt {self.name}: runs in one process; start it without torchrun and "
                "accelerate launch "
                "(train, eval-ood, generate and experiment run in several)"
            )
        return super().invoke(ctx)


def repeat_options(words: list[str]) -> list[str]:
    """A command line with `--seed 0 1` written as `--seed 0 --seed 1`."""
    repeated: list[str] = []
    option, has_value = "", False
    for word in words:
        if option and has_value and _LISTS[option](word):
            repeated.append(option)
        elif word in _LISTS:
            option, has_value = word, False
        elif option and not has_value:
            has_value = True
        else:
            option = ""
        repeated.append(word)
    return repeated


def split_list(values: list[str] | None) -> list[str]:
    """The values of a list option, each once: repeated, or separated by commas."""
    parts = [part.strip() for value in values or [] for part in value.split(",")]
    return list(dict.fromkeys(part for part in parts if part))


def parse_seeds(values: list[str] | None) -> list[int]:
    """The values of --seed as integers."""
    for part in (parts := split_list(values)):
        if not part.isdecimal() or len(part) > _MOST_DIGITS:
            raise UserError(
                f"--seed {brief(part)}: expected non-negative integers, for example --seed 0 1 2"
            )
    return [int(part) for part in parts]


def parse_plugins(option: str, kind: str, values: list[str] | None) -> list[str]:
    """The values of an option that names plug-ins of a kind; refuses unknown ones."""
    from cudt.config import plugins

    for name in (names := split_list(values)):
        try:
            plugins.check(kind, name)
        except UserError as error:
            raise UserError(f"{option}: {error}") from None
    return names


def parse_trackers(values: list[str] | None) -> tuple[str, ...]:
    """The values of --track."""
    return tuple(split_list(values))


def require_folder(path: Path, what: str = "folder") -> None:
    """Refuse a path that is not a folder."""
    if not path.is_dir():
        is_weights = path.name in list(WeightsChoice) and (path.parent / "run.json").is_file()
        hint = (
            f"; `{as_command('eval-ood', path.parent, '--weights', path.name)}` creates it"
            if is_weights
            else ""
        )
        raise UserError(f"{what} {shown(str(path), 300)} does not exist{hint}")


def refuse_with_join(**given: object) -> None:
    """Refuse options that only the command that begins may have; `retry_failed` is
    --retry-failed.
    """
    for name, value in given.items():
        if value:
            raise UserError(
                f"--{name.replace('_', '-')}: cannot be given with --join, which takes part in "
                "what was begun as it is"
            )
