"""Plug-ins by name: a recipe's name for a model, task, noise or objective is the name of the file
that implements it.

A name with a dot is the import path of a module outside cudt: `model: {name: my_package.my_model}`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from cudt.utils.errors import UserError, did_you_mean
from cudt.utils.shown import brief, shown


@dataclass(frozen=True)
class Kind:
    """A sort of plug-in: the package that holds its files, and the line by which such a file is
    recognised.
    """

    package: str
    mark: str


KINDS = {
    "model": Kind("cudt.models", "def build("),
    "task": Kind("cudt.tasks", "def build("),
    "noise": Kind("cudt.noise", "NOISE = "),
    "objective": Kind("cudt.method.objectives", "OBJECTIVE = "),
    "dual optimizer": Kind("cudt.method.dual_optimizers", "def build("),
    "figure": Kind("cudt.report.figures", "FIGURE = "),
}


@functools.cache
def names(kind: str) -> list[str]:
    """The plug-ins of a kind that come with cudt, without importing any of them."""
    folder = Path(__file__).parents[2].joinpath(*KINDS[kind].package.split("."))
    marked = re.compile(f"^{re.escape(KINDS[kind].mark)}", re.MULTILINE)
    return sorted(
        path.stem for path in folder.glob("*.py") if marked.search(path.read_text(encoding="utf-8"))
    )


def problem(kind: str, name: str, suggested: Sequence[str] | None = None) -> str:
    """Why there is no plug-in of that name, and which names to use instead (default: all); empty if
    there is one.
    """
    if "." in name:
        return (
            ""
            if _is_module(name)
            else f"no Python module {shown(name)}; install its package or set PYTHONPATH"
        )
    if name in names(kind):
        return ""
    known = names(kind) if suggested is None else suggested
    return (
        f"unknown {kind} {shown(name)}{did_you_mean(name, known) or ';'} known: {', '.join(known)}"
    )


def load(kind: str, name: str) -> ModuleType:
    """Import the file of a plug-in."""
    if why := problem(kind, name):
        raise UserError(why)
    module = (
        importlib.import_module(f"{KINDS[kind].package}.{name}")
        if "." not in name
        else _outside(kind, name)
    )
    wanted = re.findall(r"\w+", KINDS[kind].mark)[-1]
    if not hasattr(module, wanted):
        raise UserError(f"{kind} {shown(name)}: {module.__file__} does not define `{wanted}`")
    return module


def _outside(kind: str, name: str) -> ModuleType:
    """Import a module from outside cudt; any exception that it raises becomes a UserError."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        why = f"{type(error).__name__}: {brief(str(error), 300)}"
        raise UserError(f"{kind} {shown(name)}: importing the module failed: {why}") from error


def _is_module(name: str) -> bool:
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:  # finding a module imports its package, which can raise anything
        return False
