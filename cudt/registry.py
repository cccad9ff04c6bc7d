"""Models and tasks by name: the name in a recipe is the name of the file that implements it."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from cudt.errors import UserError, did_you_mean

_KINDS = {"model": "models", "task": "tasks"}


def names(kind: str) -> list[str]:
    """What there is of a kind, without importing any of it. Files that begin with `_` are shared helpers."""
    folder = Path(__file__).parent / _KINDS[kind]
    return sorted(module.name for module in pkgutil.iter_modules([str(folder)]) if not module.name.startswith("_"))


def load(kind: str, name: str) -> ModuleType:
    """Import the file of a model or task. It holds `Config` (its part of a recipe) and `build`."""
    known = names(kind)
    if name not in known:
        hint = did_you_mean(name, known) or ";"
        raise UserError(f"{kind}.name = {name!r}: unknown {kind}{hint} known: {', '.join(known)}")
    return importlib.import_module(f"cudt.{_KINDS[kind]}.{name}")
