"""Consoles and progress bars that the commands share."""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.console import Console

from cudt.utils.processes import is_main_process
from cudt.utils.text import track


def make_console() -> Console:
    """Standard output; only the main process of a distributed run prints."""
    return Console(quiet=not is_main_process(), markup=False, emoji=False)


def make_error_console() -> Console:
    """Standard error, for errors and warnings; also of the main process only."""
    return Console(
        stderr=True, highlight=False, quiet=not is_main_process(), markup=False, emoji=False
    )


def progress_on(console: Console) -> Any:
    """A `track` function that draws its progress bar on this console."""
    return partial(track, console=console)
