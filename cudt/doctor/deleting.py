"""Deleting files of a run that somebody else may have written: never one that is elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cudt.utils.errors import UserError


def check_inside(run: Path, paths: Iterable[Path]) -> None:
    """Refuse files that a symbolic link puts outside the run's folder; to be called before anything is deleted."""
    for path in paths:
        is_link_to_folder = path.is_symlink() and path.is_dir()
        if is_link_to_folder or not path.parent.resolve().is_relative_to(run.resolve()):
            raise UserError(f"{path} is a link out of the run's folder, or below one; delete it yourself")
