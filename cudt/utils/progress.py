"""What is said while work goes on: by which process, and a bar on what takes long."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import track as rich_track

Item = TypeVar("Item")


def is_main_process() -> bool:
    """Whether this process is the one that speaks and writes; launchers number processes in RANK."""
    return os.environ.get("RANK", "0") == "0"


def track(items: Iterable[Item], total: int, what: str, console: Console | None = None) -> Iterable[Item]:
    """The same items; on a terminal, with a bar that goes away at the end. One process of several shows it."""
    console = console or Console(stderr=True, markup=False, emoji=False)
    hidden = not console.is_terminal or not is_main_process()
    return rich_track(items, escape(what), total, console=console, transient=True, disable=hidden)
