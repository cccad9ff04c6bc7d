"""Values of users in messages: short, on one line, and without anything that a terminal would act on."""

from __future__ import annotations

import itertools
import re
import reprlib
import shlex
from pathlib import PurePath
from typing import Any

#: Characters of a value that a message shows.
_MOST = 80
#: The same for a path, whose parts all matter.
_MOST_OF_A_PATH = 300
#: Characters of a line of an error.
_LONGEST_LINE = 2000
#: Spaces that Python does not call printable, and that are harmless.
_SPACES = "\u00a0\u2003\u2009\u202f"
#: Line breaks that no indented line follows; those of cudt's own lists are followed by one.
_LONE_BREAK = re.compile(r"\n(?!  )")


class _BoundedRepr(reprlib.Repr):
    """`repr` that stops: a list of texts may be a thousand times larger than the file that repeats one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = _MOST
        self.maxstring = self.maxlong = self.maxother = 2 * _MOST_OF_A_PATH

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """In the order of the keys, which reprlib sorts."""
        if level <= 0:
            return "{...}"
        items = itertools.islice(x.items(), self.maxdict)
        parts = [f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}" for key, value in items]
        return f"{{{', '.join([*parts, *(['...'] if len(x) > self.maxdict else [])])}}}"


_BOUNDED = _BoundedRepr()


def shown(value: Any, most: int = _MOST) -> str:
    """A value as Python writes it, cut in the middle; control characters and surrogates are escaped."""
    try:
        text = _BOUNDED.repr(value)
    except ValueError:
        # Integers of thousands of digits.
        text = f"<a very large {type(value).__name__}>"
    return brief(text, most)


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
    return "".join(one if one.isprintable() or one in _SPACES else _escaped(one) for one in text)


def printable(text: str) -> str:
    """A text without control characters but line breaks, for a terminal."""
    return text if text.isprintable() else "\n".join(map(one_line, text.split("\n")))


def printable_error(text: str) -> str:
    """The same for an error or a warning: no break but those of a list, and no line that fills the screen."""
    lines = _LONE_BREAK.sub(r"\\n", text.rstrip("\n")).split("\n")
    return "\n".join(brief(line, _LONGEST_LINE) for line in lines)


def is_text(text: str) -> bool:
    """Whether a text can be written to a file; names of files can have bytes that are no UTF-8."""
    return text.isprintable() or not any("\ud800" <= one <= "\udfff" for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def as_command(*words: object) -> str:
    """A command of cudt that can be copied into a shell, whatever characters a folder's name has."""
    return shlex.join(["cudt", *map(str, words)])
