"""The `cudt` command: its subcommands, and how errors and warnings are printed.

Heavy imports (torch, transformers, pandas) are inside the commands, so that `cudt --help` and the
refusal of a recipe answer at once.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from cudt import __version__
from cudt.cli.evaluate import eval_ood, generate
from cudt.cli.options import make_console, say
from cudt.cli.recipes import app as recipes
from cudt.cli.recipes import data, doctor, export
from cudt.cli.report import report, reproduce
from cudt.cli.runs import compare, runs
from cudt.cli.sweep import sweep
from cudt.cli.train import experiment, train
from cudt.utils import processes
from cudt.utils.errors import (
    DataWarning,
    MachineFaultError,
    TerminatedError,
    TrainingInterruptedError,
    TrainingStoppedError,
    UserError,
    signal_of,
)

app = typer.Typer(
    help="Train transformers in which every layer lowers the loss, and measure how they degrade under noise.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
#: Commands with an example, in the order of --help.
_COMMANDS = {
    train: "--recipe imdb-minilm --seed 0,1,2 --objective erm,constrained",
    experiment: "imdb-minilm --seed 0,1,2",
    eval_ood: "outputs/imdb-minilm/* --perturbation gaussian,discrete",
    sweep: "--search alpha --recipe smoke-text --workers 2",
    report: "outputs/imdb-minilm --out outputs/report-imdb-minilm",
    reproduce: "--scale smoke --workers 2",
    runs: "outputs",
    compare: "RUN_A RUN_B",
}
_MORE_COMMANDS = {
    generate: "RUN --instructions alpaca_eval.json --gamma 0.4",
    export: "RUN my-model",
    data: "--data-root data",
    doctor: "outputs",
}
#: The commands whose work several processes share.
_IN_SEVERAL_PROCESSES = ("experiment", "train")


class Command(TyperCommand):
    """A command that Ctrl-C and SIGTERM end with a line."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; refuse to do the same work in several processes at once."""
        if processes.count() > 1 and self.name not in _IN_SEVERAL_PROCESSES:
            how = "start it without torchrun and accelerate launch"
            raise UserError(f"cudt {self.name}: runs in one process; {how}")
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            message = "interrupted; run the same command again"
            raise TrainingInterruptedError(message, signal_of(error)) from None


for _panel, _commands in {"Commands": _COMMANDS, "More": _MORE_COMMANDS}.items():
    for _command, _example in _commands.items():
        _name = _command.__name__.replace("_", "-")
        _epilog = f"Example: cudt {_name} {_example}"
        app.command(_name, cls=Command, rich_help_panel=_panel, epilog=_epilog)(_command)  # type: ignore[type-var]
_epilog = "Example: cudt recipes show imdb-minilm"
app.add_typer(recipes, name="recipes", rich_help_panel="More", epilog=_epilog)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run a command. An error that the user can fix is one line, any other is a traceback."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    if processes.count() == 1:
        # Not one of several processes, which may wait in a call that no signal ends.
        signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except SystemExit as done:
        if not done.code:
            processes.leave()
        raise
    except TrainingInterruptedError as error:
        say(str(error), stderr=True)
        sys.exit(error.exit_code)
    except TrainingStoppedError as error:
        say(f"stopped: {error}", stderr=True)
        sys.exit(1)
    except (UserError, MachineFaultError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise
        _end(error, 1 if isinstance(error, MachineFaultError) else 2)


def _end(error: Exception, code: int) -> NoReturn:
    console, who = make_console(stderr=True), ""
    if not processes.is_main_process():
        # Perhaps only this process has the error.
        console.quiet, who = False, f"process {processes.index()} of {processes.count()}: "
    console.print(f"{'error' if code == 2 else 'stopped'}: {who}{error}", soft_wrap=True)
    if processes.count() > 1:
        # torch would wait for processes that wait for this one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _terminate(*_: object) -> NoReturn:
    raise TerminatedError


_show_other = warnings.showwarning


def _show_warning(text: Any, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a warning about data as one line."""
    if issubclass(category, DataWarning):
        say(f"warning: {text}", stderr=True)
    else:
        _show_other(text, category, *where, **more)
