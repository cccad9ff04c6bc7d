"""`cudt doctor`: whether this installation, this machine and these runs are in order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cudt.cli.terminal import make_console, make_error_console, progress_on
from cudt.utils.errors import UserError
from cudt.utils.shown import shown_path

if TYPE_CHECKING:
    from cudt.doctor import Diagnosis

Examined = Annotated[
    list[Path] | None,
    typer.Argument(help="Folders to search for runs, and recipe files (.yaml).", show_default="outputs"),
]
#: Without the check of other commands: a data root that does not exist is what the doctor is asked about.
AnyDataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", envvar="CUDT_DATA_ROOT", help="Folder that holds the data sets.", show_default=False),
]
Fix = Annotated[
    bool,
    typer.Option(
        "--fix", help="Repair what can be repaired without training again; weights and finished runs are never deleted."
    ),
]
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red", "fixed": "bold green"}
_WIDTH = max(map(len, _STYLES)) + 4


def doctor(paths: Examined = None, data_root: AnyDataRoot = None, fix: Fix = False) -> None:
    """Check packages, device, folders, data, recipes and runs; say what is wrong and what to do about it.

    The exit code is 1 if a problem is left, 2 if a folder or a recipe does not exist, else 0.
    """
    from cudt.doctor import Scope, examine

    console, named = make_console(), paths or [Path("outputs")]
    for path in paths or []:
        if not path.exists():
            raise UserError(f"{shown_path(path)} does not exist; give a folder with runs or a recipe file (.yaml)")
    recipes = [str(path) for path in named if path.suffix in (".yaml", ".yml")]
    folders = [path for path in named if str(path) not in recipes]
    scope = Scope(folders, recipes, data_root, track=progress_on(make_error_console()))
    counts: Counter[str] = Counter()
    for check, found in examine(scope):
        if found:
            console.print(Text(check.title, "bold"))
        for diagnosis in found:
            counts[_show(console, diagnosis, fix=fix)] += 1
            counts["fixable"] += diagnosis.fix is not None
    console.print(Text(_summary(counts, fix=fix), "bold red" if counts["problem"] else "bold green"))
    raise typer.Exit(1 if counts["problem"] else 0)


def _show(console: Console, diagnosis: Diagnosis, *, fix: bool) -> str:
    """Print a diagnosis, repaired if asked for; returns its severity, or `fixed`."""
    severity, advice = str(diagnosis.severity), diagnosis.advice
    if fix and diagnosis.fix is not None:
        try:
            severity, advice = "fixed", diagnosis.fix()
        except Exception as error:  # the others can still be repaired
            advice = f"could not be repaired ({error}); {advice}"
    style = _STYLES[severity]
    console.print(Text.assemble((f"  {severity}".ljust(_WIDTH), style), _printable(diagnosis.title)), soft_wrap=True)
    if advice:
        console.print(Text(f"{' ' * _WIDTH}→ {_printable(advice)}", "dim"), soft_wrap=True)
    return severity


def _printable(text: str) -> str:
    """One line; names of files may contain control characters and what is not Unicode."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)


def _summary(counts: Counter[str], *, fix: bool) -> str:
    parts = [
        f"{counts[kind]} {kind}{'s' if counts[kind] != 1 and kind != 'fixed' else ''}"
        for kind in ("problem", "warning", "fixed")
        if counts[kind]
    ]
    if not parts:
        return "\neverything is in order"
    hint = "" if fix or not counts["fixable"] else f"; `cudt doctor --fix` repairs {counts['fixable']} of these"
    return "\n" + ", ".join(parts) + hint
