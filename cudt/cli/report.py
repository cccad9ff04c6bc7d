"""`cudt report`: tables, figures and a page about all runs below some folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cudt.cli.options import Folders, parse_plugins, require_folder
from cudt.cli.terminal import make_console

Figures = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        help="Also draw a figure of your own, for example my_package.my_figure. Repeatable.",
        show_default=False,
    ),
]


def report(
    folder: Folders = None,
    figure: Figures = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("outputs/report"),
) -> None:
    """Write tables (CSV, Markdown, LaTeX), figures (PNG, PDF) and an HTML page about all runs below
    some folders.
    """
    folders = folder or [Path("outputs")]
    for path in folders:
        require_folder(path)
    write_report(make_console(), folders, out, parse_plugins("--figure", "figure", figure))


def write_report(
    console: Console, folders: list[Path], out: Path, figures: Sequence[str] = ()
) -> None:
    """Write the report and print its summary."""
    from cudt import report as reports
    from cudt.report.terminal import summary_table

    with console.status("reading runs, comparing them, drawing figures"):
        made = reports.write(folders, out, figures)
    for warning in made.warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    console.print(summary_table(made.table))
    if made.verdict:
        console.print(made.verdict, highlight=False)
    sweeps = (
        f" with {made.n_sweeps} sweep{'s' if made.n_sweeps > 1 else ''}" if made.n_sweeps else ""
    )
    console.print(
        f"report: {made.page}{sweeps}\ntables: {made.table_path}; in the paper's layout in "
        f"{out / 'tables'}",
        soft_wrap=True,
    )
