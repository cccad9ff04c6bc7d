"""Consoles that print names and texts of users as they are, except for what a terminal would act
on.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from cudt.utils.shown import printable


class SafeConsole(Console):
    """A console that interprets no markup and escapes control characters, such as the codes of a
    terminal.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text as it is printed."""
        return super().render_str(printable(text), **options)
