"""Progress bars, and which of several processes prints."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import track as rich_track

Item = TypeVar("Item")


def is_main_process() -> bool:
    """Whether this process prints and writes files; launchers number the processes in RANK."""
    return os.environ.get("RANK", "0") == "0"


def track(items: Iterable[Item], total: int, what: str, console: Console | None = None) -> Iterable[Item]:
    """Iterate over the items; on a terminal, the main process shows a progress bar until the end."""
    console = console or Console(stderr=True, markup=False, emoji=False)
    hidden = not console.is_terminal or not is_main_process()
    return rich_track(items, escape(what), total, console=console, transient=True, disable=hidden)
