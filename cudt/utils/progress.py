"""Progress bars and durations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import track as rich_track

from cudt.utils.console import SafeConsole
from cudt.utils.processes import is_main_process

Item = TypeVar("Item")
Track = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""`track` with its console."""
#: Without a terminal, seconds between two lines about the progress.
_INTERVAL = 30.0


def track(
    items: Iterable[Item], total: int, what: str, console: Console | None = None
) -> Iterable[Item]:
    """Iterate over the items; the main process shows a progress bar, or a line every 30 seconds
    without a terminal.
    """
    console = console or SafeConsole(stderr=True)
    if not is_main_process():
        return items
    if not console.is_terminal:
        return _with_lines(items, total, what, console)
    return rich_track(items, escape(what), total, console=console, transient=True)


def _with_lines(items: Iterable[Item], total: int, what: str, console: Console) -> Iterator[Item]:
    began = printed = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - printed >= _INTERVAL:
            left = duration((now - began) / done * (total - done))
            console.print(
                f"{what}  {done}/{total}  {left} left",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
            printed = now
        yield item


def duration(seconds: float) -> str:
    """`3.1 s`, `0:05:07`, or `3 days, 4:00:00`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds)))
