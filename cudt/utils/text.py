"""Texts for people: the terminal, values in messages, suggestions, numbers."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import track as rich_track

from cudt.utils.processes import is_main_process

Item = TypeVar("Item")
Track = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""`track` with its console."""


def track(
    items: Iterable[Item], total: int, what: str, console: Console | None = None
) -> Iterable[Item]:
    """Iterate over the items; the main process shows a progress bar on a terminal."""
    shown_on = console or Console(stderr=True)
    hidden = not (is_main_process() and shown_on.is_terminal)
    return rich_track(items, escape(what), total, console=shown_on, transient=True, disable=hidden)


def brief(text: str, most: int = 80) -> str:
    """A text in one line, cut in the middle if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 21]} … {line[-18:]}"


def shown(value: Any, most: int = 80) -> str:
    """A value as Python writes it, cut in the middle if it is long."""
    return brief(repr(value), most)


def as_command(*words: object) -> str:
    """A command of cudt that can be copied into a shell."""
    return shlex.join(["cudt", *map(str, words)])


def closest(word: str, choices: Iterable[str]) -> str:
    """The closest of `choices`; an empty text if none is close."""
    # Comparing a text of a hundred kilobytes with names would take minutes.
    return next(iter(difflib.get_close_matches(word[:100], list(choices), n=1)), "")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of `choices`; an empty text if none is close."""
    meant = closest(word, choices)
    return f"; did you mean '{meant}'?" if meant else ""


def short_number(value: float) -> str:
    """The number with four decimals, fewer if it is large."""
    if abs(value) < 1000:
        return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"
    return f"{value:.4g}"


def ranges(numbers: Iterable[int]) -> str:
    """`1–3, 5`: the numbers in order, neighbours as a range."""
    groups: list[list[int]] = []
    for number in sorted(set(numbers)):
        if groups and groups[-1][-1] == number - 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(
        "–".join(str(end) for end in dict.fromkeys([one[0], one[-1]])) for one in groups
    )
