"""The `cudt` command: its subcommands, and how errors and warnings are printed.

Heavy imports (torch, transformers, pandas) are inside the commands, so that `cudt --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from cudt import __version__
from cudt.cli.compare import compare
from cudt.cli.data import data
from cudt.cli.eval_ood import eval_ood
from cudt.cli.experiment import experiment
from cudt.cli.generate import generate
from cudt.cli.options import ListCommand, LonelyCommand
from cudt.cli.privacy import privacy
from cudt.cli.recipes import app as recipes
from cudt.cli.report import report
from cudt.cli.reproduce import reproduce
from cudt.cli.runs import runs
from cudt.cli.sweep import sweep
from cudt.cli.terminal import make_error_console
from cudt.cli.train import train
from cudt.utils import processes
from cudt.utils.errors import (
    AgreedError,
    DataWarning,
    ProcessLostError,
    TrainingInterruptedError,
    TrainingStoppedError,
    UserError,
)

app = typer.Typer(
    help="Train transformers in which every layer lowers the loss, and measure how they degrade under noise.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


#: The commands whose work several processes share.
_IN_SEVERAL_PROCESSES = ("experiment", "train", "eval-ood", "generate")


def _add(name: str, panel: str, example: str, command: Callable[..., None]) -> None:
    kind = ListCommand if name in _IN_SEVERAL_PROCESSES else LonelyCommand
    app.command(name, cls=kind, rich_help_panel=panel, epilog=f"Example: {example}")(command)


_add("experiment", "Train and evaluate", "cudt experiment imdb-minilm --seeds 0 1 --perturbation gaussian", experiment)
_add("train", "Train and evaluate", "cudt train --recipe imdb-minilm --seed 0 1 --objective erm constrained", train)
_add("eval-ood", "Train and evaluate", "cudt eval-ood outputs/imdb-minilm/* --perturbation gaussian discrete", eval_ood)
_add("sweep", "Train and evaluate", "cudt sweep --search smoke-alpha --workers 2", sweep)
_add("reproduce", "Train and evaluate", "cudt reproduce --scale smoke --workers 2", reproduce)
_add("generate", "Train and evaluate", "cudt generate RUN --instructions alpaca_eval.json --gamma 0.4", generate)
_add("runs", "Look at results", "cudt runs outputs --filter status=finished --sort -score", runs)
_add("compare", "Look at results", "cudt compare outputs/imdb-minilm/erm-* outputs/imdb-minilm/constrained-*", compare)
_add("privacy", "Look at results", "cudt privacy outputs/imdb-minilm/* --delta 1e-5", privacy)
_add("report", "Look at results", "cudt report outputs/imdb-minilm --out outputs/report-imdb-minilm", report)
app.add_typer(
    recipes, name="recipes", rich_help_panel="What is available", epilog="Example: cudt recipes show imdb-minilm"
)
_add("data", "What is available", "cudt data --data-root data", data)


def main() -> None:
    """Run a command; errors and warnings about data are printed as one line, without a traceback."""
    errors = make_error_console()
    _print_data_warnings(errors)
    try:
        app()
    except SystemExit as done:
        if not done.code:
            processes.leave()
        raise
    except (UserError, OSError) as error:
        shared = processes.agree_on(error)
        if not isinstance(shared, AgreedError):
            # What only this process knows.
            errors.quiet = False
        errors.print(f"error: {shared}", soft_wrap=True)
        sys.exit(2)
    except ProcessLostError as error:
        errors.quiet = errors.quiet and not error.speaks
        errors.print(f"{error}; run the same command again, with any number of processes", soft_wrap=True)
        # At once: torch would wait for the process that is lost.
        sys.stderr.flush()
        os._exit(1)
    except TrainingStoppedError as error:
        errors.print(f"stopped: {error}", soft_wrap=True)
        sys.exit(1)
    except TrainingInterruptedError as error:
        errors.print(str(error), soft_wrap=True)
        sys.exit(130)


def _print_data_warnings(errors: Console) -> None:
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            errors.print(f"warning: {message}", style="yellow", soft_wrap=True)
        else:
            shown(message, category, *where, **more)

    warnings.showwarning = show
