"""The `cudt` command: its subcommands, and how errors and warnings are printed.

Heavy imports (torch, transformers, pandas) are inside the commands, so that `cudt --help` answers
at once.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from cudt import __version__
from cudt.cli.compare import compare
from cudt.cli.data import data
from cudt.cli.doctor import doctor
from cudt.cli.eval_ood import eval_ood
from cudt.cli.experiment import experiment
from cudt.cli.export import export
from cudt.cli.generate import generate
from cudt.cli.options import ListCommand, LonelyCommand
from cudt.cli.recipes import app as recipes
from cudt.cli.report import report
from cudt.cli.reproduce import reproduce
from cudt.cli.runs import runs
from cudt.cli.sweep import sweep
from cudt.cli.terminal import make_error_console
from cudt.cli.train import train
from cudt.utils import processes
from cudt.utils.errors import (
    DataWarning,
    MachineFaultError,
    TerminatedError,
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
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


#: The commands whose work several processes share.
_IN_SEVERAL_PROCESSES = ("experiment", "train", "eval-ood", "generate")


def _add(name: str, panel: str, example: str, command: Callable[..., None]) -> None:
    kind = ListCommand if name in _IN_SEVERAL_PROCESSES else LonelyCommand
    app.command(name, cls=kind, rich_help_panel=panel, epilog=f"Example: {example}")(command)


_add(
    "experiment",
    "Train and evaluate",
    "cudt experiment imdb-minilm --seeds 0 1 --perturbation gaussian",
    experiment,
)
_add(
    "train",
    "Train and evaluate",
    "cudt train --recipe imdb-minilm --seed 0 1 --objective erm constrained",
    train,
)
_add(
    "eval-ood",
    "Train and evaluate",
    "cudt eval-ood outputs/imdb-minilm/* --perturbation gaussian discrete",
    eval_ood,
)
_add("sweep", "Train and evaluate", "cudt sweep --search alpha --recipe smoke-text", sweep)
_add("reproduce", "Train and evaluate", "cudt reproduce --scale smoke --workers 2", reproduce)
_add(
    "generate",
    "Train and evaluate",
    "cudt generate RUN --instructions alpaca_eval.json --gamma 0.4",
    generate,
)
_add("export", "Train and evaluate", "cudt export RUN my-model", export)
_add("runs", "Look at results", "cudt runs outputs", runs)
_add(
    "compare",
    "Look at results",
    "cudt compare outputs/imdb-minilm/erm-* outputs/imdb-minilm/constrained-*",
    compare,
)
_add(
    "report",
    "Look at results",
    "cudt report outputs/imdb-minilm --out outputs/report-imdb-minilm",
    report,
)
app.add_typer(
    recipes,
    name="recipes",
    rich_help_panel="What is available",
    epilog="Example: cudt recipes show imdb-minilm",
)
_add("data", "What is available", "cudt data --data-root data", data)
_add("doctor", "What is available", "cudt doctor outputs", doctor)


def main() -> None:
    """Run a command; errors and warnings about data are printed as one line, without a
    traceback.
    """
    errors = make_error_console()
    _print_data_warnings(errors)
    try:
        with _terminating():
            app()
    except SystemExit as done:
        if not done.code:
            processes.leave()
        raise
    except Exception as error:
        code = _report(error, errors)
        if code is None:
            raise
        if processes.count() > 1 and not isinstance(
            error, TrainingInterruptedError | TrainingStoppedError
        ):
            # torch would wait for processes that wait for this one.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        sys.exit(code)


def _report(error: Exception, errors: Console) -> int | None:
    """Print an error as one line; returns the exit code, or None for an error that needs its
    traceback.
    """
    if isinstance(error, TrainingInterruptedError):
        errors.print(str(error), soft_wrap=True)
        return error.exit_code
    if isinstance(error, TrainingStoppedError):
        errors.print(f"stopped: {error}", soft_wrap=True)
        return 1
    if isinstance(error, OSError) and error.filename is None:
        return None
    if not isinstance(error, UserError | OSError | MachineFaultError):
        return None
    # Of several processes, perhaps only this one has it.
    errors.quiet = False
    who = (
        ""
        if processes.is_main_process()
        else f"process {processes.index()} of {processes.count()}: "
    )
    is_fault = isinstance(error, MachineFaultError)
    errors.print(f"{'stopped' if is_fault else 'error'}: {who}{error}", soft_wrap=True)
    return 1 if is_fault else 2


@contextmanager
def _terminating() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that nothing half-written is left.

    Not one of several processes, which may wait for the others in a call that no signal ends.
    """
    if processes.count() > 1:
        yield
        return

    def terminate(*_: object) -> NoReturn:
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_data_warnings(errors: Console) -> None:
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            errors.print(f"warning: {message}", style="yellow", soft_wrap=True)
        else:
            shown(message, category, *where, **more)

    warnings.showwarning = show
