"""`cudt report`: tables, figures and a page about all runs below some folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cudt.cli.options import Folders, parse_plugins, require_folder
from cudt.cli.terminal import make_console
from cudt.utils.errors import UserError

_FORMATS = ("png", "svg", "pdf")
Figures = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        help="Also draw a figure of your own, for example my_package.my_figure. Repeatable.",
        show_default=False,
    ),
]
Formats = Annotated[
    str,
    typer.Option(
        "--format", help=f"Formats of figures, for example svg,pdf: {', '.join(_FORMATS)}."
    ),
]


def report(
    folder: Folders = None,
    figure: Figures = None,
    formats: Formats = "png",
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Write tables only.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("outputs/report"),
) -> None:
    """Write tables (CSV, Markdown, LaTeX), figures and an HTML page about all runs below some
    folders.
    """
    folders = folder or [Path("outputs")]
    for path in folders:
        require_folder(path)
    named = [] if no_figures else [one.strip() for one in formats.split(",")]
    if unknown := [one for one in named if one not in _FORMATS]:
        raise UserError(f"--format: unknown format '{unknown[0]}'; known: {', '.join(_FORMATS)}")
    extra = parse_plugins("--figure", "figure", figure)
    write_report(make_console(), folders, out, extra, named)


def write_report(
    console: Console,
    folders: list[Path],
    out: Path,
    figures: Sequence[str] = (),
    formats: Sequence[str] = ("png",),
) -> None:
    """Write the report and print its summary."""
    from cudt import report as reports
    from cudt.report.tables import terminal_table

    with console.status("reading runs, comparing them, drawing figures"):
        made = reports.write(folders, out, figures, formats)
    for warning in made.warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    console.print(terminal_table(made.table))
    if made.verdict:
        console.print(made.verdict, highlight=False)
    console.print(f"report: {made.page}\ntable:  {made.table_path}", soft_wrap=True)
