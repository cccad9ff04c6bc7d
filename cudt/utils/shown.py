"""Values of users in messages: short, and without anything that a terminal would act on."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import Any

#: Characters of a value that a message shows.
_MOST = 80
#: The same for a path, whose parts all matter.
_MOST_OF_A_PATH = 300
#: Spaces that Python does not call printable, and that are harmless.
_SPACES = "\u00a0\u2003\u2009\u202f"


def shown(value: Any, most: int = _MOST) -> str:
    """A value as Python writes it, cut in the middle."""
    return brief(repr(value), most)


def shown_path(path: str | PurePath) -> str:
    """The same for a path, which can be longer."""
    return shown(str(path), _MOST_OF_A_PATH)


def brief(text: str, most: int = _MOST) -> str:
    """A text without quotes, cut in the middle if it is long, and without control characters."""
    return one_line(text if len(text) <= most else f"{text[: most - 21]} … {text[-18:]}")


def one_line(text: str) -> str:
    """A text without control characters and line breaks, which are escaped."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in _SPACES else ascii(one)[1:-1] for one in text)


def printable(text: str) -> str:
    """A text without control characters but line breaks, for a terminal."""
    return "\n".join(map(one_line, text.split("\n")))


def is_text(text: str) -> bool:
    """Whether a text can be written to a file; names of files can have bytes that are no UTF-8."""
    return not any("\ud800" <= one <= "\udfff" for one in text)


def as_command(*words: object) -> str:
    """A command of cudt that can be copied into a shell, whatever characters a folder's name
    has.
    """
    return shlex.join(["cudt", *map(str, words)])
