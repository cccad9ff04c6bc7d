"""A progress bar on work that takes long, where a person is looking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track as rich_track

Item = TypeVar("Item")


def track(items: Iterable[Item], total: int, what: str, console: Console | None = None) -> Iterable[Item]:
    """The same items; on a terminal, with a bar that goes away at the end."""
    console = console or Console(stderr=True, markup=False, emoji=False)
    return rich_track(items, what, total, console=console, transient=True, disable=not console.is_terminal)
