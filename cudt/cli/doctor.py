"""`cudt doctor`: whether torch works, which data and weights are missing, and which runs are not
finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout
from rich.text import Text

from cudt.cli.terminal import make_console
from cudt.utils.errors import UserError

Folders = Annotated[
    list[Path] | None,
    typer.Argument(help="Folders to search for runs.", show_default="outputs, if it exists"),
]
#: Without the check of other commands: a data root that does not exist is what the doctor is asked
#: about.
AnyDataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        envvar="CUDT_DATA_ROOT",
        help="Folder that holds the data sets.",
        show_default=False,
    ),
]
#: A word about the line ("ok", "missing", "problem", …) and the line itself.
Finding = tuple[str, str]
_STYLES = {"ok": "green", "problem": "bold red"}


def doctor(folders: Folders = None, data_root: AnyDataRoot = None) -> None:
    """Show torch and its device, the data sets, what recipes are missing, and unfinished or damaged
    runs.

    The exit code is 1 if there is a problem, 2 if a folder does not exist, else 0.
    """
    for folder in folders or []:
        if not folder.is_dir():
            raise UserError(f"folder '{folder}' does not exist")
    root = data_root if data_root is None or data_root.is_dir() else None
    searched = folders or [folder for folder in (Path("outputs"),) if folder.is_dir()]
    parts = {
        "Torch and device": _device(),
        "Data": _data(data_root),
        "Recipes": _recipes(root),
        "Runs": _runs(searched),
    }
    console, has_problem = make_console(), False
    for title, findings in parts.items():
        console.print(Text(title, "bold"))
        for word, line in findings:
            has_problem |= word == "problem"
            console.print(
                Text.assemble((f"  {word:<12}", _STYLES.get(word, "yellow")), line), soft_wrap=True
            )
    raise typer.Exit(1 if has_problem else 0)


def _device() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:
        yield "problem", f"torch cannot be imported: {error}; install it again"
        return
    yield "ok", f"torch {torch.__version__}"
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    if accelerator is None:
        yield "ok", "no GPU that torch can use; training is on the CPU"
    elif accelerator.type == "cuda":
        for number in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(number)
            yield "ok", f"{found.name} ({found.total_memory / 2**30:.0f} GB)"
    elif accelerator.type == "mps":
        yield "ok", "training is on the CPU, because MPS has no double precision"
    else:
        yield "ok", f"device {accelerator.type}"


def _data(data_root: Path | None) -> Iterator[Finding]:
    if data_root is not None and not data_root.is_dir():
        yield "problem", f"data root '{data_root}' does not exist"
        return
    from cudt.tasks.base import published

    absent = []
    for one in published(data_root):
        if not one.problem:
            yield "ok", one.name
        elif one.parts:
            yield "incomplete", f"{one.name}: {one.problem}"
        else:
            absent.append(one.name)
    if absent:
        yield "missing", f"{', '.join(absent)}; `cudt data` says where to get them"


def _recipes(data_root: Path | None) -> Iterator[Finding]:
    from cudt.config import recipe as recipes
    from cudt.reproduce import plan

    ready, lacking = [], dict[str, list[str]]()
    for name in recipes.names():
        try:
            missing = plan.missing(recipes.load(name), data_root)
        except UserError as error:
            missing = [str(error)]
        if not missing:
            ready.append(name)
        for what in missing:
            lacking.setdefault(what, []).append(name)
    for what, names in lacking.items():
        yield "missing", f"{', '.join(names)}: {what}"
    yield "ok", f"ready: {', '.join(ready)}"


def _runs(folders: list[Path]) -> Iterator[Finding]:
    from cudt.runs.run import find_runs

    counts: Counter[str] = Counter()
    for path in find_runs(folders):
        status, lines = _examine(path)
        counts[status] += 1
        yield from lines
    yield (
        "ok",
        ", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "none",
    )


def _examine(path: Path) -> tuple[str, list[Finding]]:
    """The status of a run, and what to do about it."""
    from cudt.runs.run import RunFolder

    if _is_in_use(path):
        return "in use", []
    run, damaged = RunFolder(path), []
    try:
        info = run.info()
    except UserError as error:
        return "damaged", [("problem", str(error))]
    for name in info.files:
        try:
            run.check(name)
        except UserError as error:
            damaged.append(("problem", str(error)))
    if damaged:
        return "damaged", damaged
    if info.status == "finished":
        return "finished", []
    how = (
        f"resume it: {info.command}"
        if info.command
        else "resume it with the command that started it"
    )
    return "unfinished", [("unfinished", f"{path}: {how}")]


def _is_in_use(run: Path) -> bool:
    from cudt.runs.run import LOCK_FILE

    if not (run / LOCK_FILE).exists():
        return False
    try:
        with FileLock(run / LOCK_FILE, timeout=0):
            return False
    except Timeout:
        return True
