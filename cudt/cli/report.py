"""`cudt report`: tables, figures and a page about runs; `cudt reproduce`: all experiments of the
paper, with their report.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudt.cli import options
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.report import Report

_FORMATS = ("png", "svg", "pdf")
Figures = Annotated[
    list[str] | None,
    typer.Option(
        "--figure",
        metavar="MODULE",
        help="Also draw a figure of your own, for example my_package.my_figure. Repeatable.",
        show_default=False,
    ),
]
Formats = Annotated[
    str, typer.Option("--format", help="Formats of figures: png, svg and pdf, as a comma list.")
]
Scale = Annotated[str | None, typer.Option(help="smoke, cpu or full, or a YAML file.")]
Only = Annotated[
    options.Words,
    typer.Option(metavar="NAME,...", help="Only these experiments, like figure-1 (see --plan)."),
]
Folder = Annotated[
    Path | None,
    typer.Option(help="Folder for all results.", show_default="outputs/reproduce-SCALE"),
]


def report(
    folder: options.Folders = None,
    figure: Figures = None,
    formats: Formats = "png",
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Write tables only.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("outputs/report"),
) -> None:
    """Write tables, figures and an HTML page about all runs below some folders."""
    named = [] if no_figures else options.split_list([formats])
    if unknown := {*named} - {*_FORMATS}:
        raise UserError(f"--format: unknown format '{unknown.pop()}'; known: {', '.join(_FORMATS)}")
    made = write_report(folder or [Path("outputs")], out, figure or [], named)
    from cudt.report.tables import terminal_table

    options.print_table(terminal_table(made.table), left=["recipe", "objective", "noise"])


def write_report(
    folders: Sequence[Path],
    out: Path,
    figures: Sequence[str] = (),
    formats: Sequence[str] = ("png",),
) -> Report:
    """Write the report; print its warnings, its answer in a sentence, and where it is."""
    from cudt import report as reports

    console = options.make_console()
    with console.status("reading runs, comparing them, drawing figures"):
        made = reports.write(folders, out, figures, formats)
    for warning in made.frames.warnings:
        options.say(f"warning: {warning}", stderr=True)
    if made.verdict:
        console.print(made.verdict)
    options.say(f"report: {made.page}")
    return made


def reproduce(
    scale: Scale = None,
    only: Only = None,
    join: options.Join = False,
    plan: options.OnlyPlan = False,
    workers: options.Workers = 1,
    retry_failed: options.RetryFailed = False,
    storage: options.Storage = None,
    device: options.Device = "auto",
    data_root: options.DataRoot = None,
    out: Folder = None,
) -> None:
    """Run all experiments of the paper, the cheapest first: sweeps, evaluations, report.

    Experiments whose data or weights are missing are skipped; cudt prints how to get them.
    Re-running the same command resumes, and elsewhere with the same --storage and --out it adds
    workers.
    """
    if join and (scale or only or retry_failed or out is None or storage is None):
        raise UserError("--join: needs --storage and --out of the command that began, and no more")
    from cudt.config import recipe as recipes
    from cudt.reproduce import scale as scales
    from cudt.sweep.worker import SweepOptions

    if join:
        folder, loaded = out or Path(), scales.begun(out or Path())
    else:
        name, names = options.needed("--scale", scale), options.split_list(only)
        loaded = scales.load(name, names)
        folder = out or Path("outputs") / f"reproduce-{recipes.locate(name, 'scale').stem}"
        if not plan:
            scales.save(folder, name, names)
    from cudt.reproduce import run as reproduction

    given = SweepOptions(folder, device, data_root, workers, retry_failed, storage, join)
    is_done = reproduction.reproduce(loaded, given, options.make_console(), only_plan=plan)
    if not plan and not join:
        write_report([folder], folder / "report")
    if not is_done:
        raise typer.Exit(1)
