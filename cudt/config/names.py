"""Names that become folders and files: an allow-list, so that no name is an option, a command or a
terminal code.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

from cudt.utils.errors import UserError
from cudt.utils.shown import shown

_ALLOWED = re.compile(r"\w(?:[\w.+=() -]*[\w.+=()-])?")
_IN_WORDS = "letters, digits, '_', '-', '.', '+', '=', '(', ')' and spaces, with a letter, digit or '_' first"
#: Folders of cudt itself, next to those of the recipes.
_RESERVED = ("report", "sweeps", "generated", "trackers")
#: `cudt experiment` writes report-RECIPE, and `cudt reproduce` reproduce-SCALE.
_RESERVED_STARTS = ("report-", "reproduce-")
#: Bytes. A folder's name can have 255, and cudt adds to a name.
_LONGEST = 100


def checked_name(name: Any, source: str, advice: str = "") -> str:
    """A name that can be a folder below the results; `source` is the key or option that sets it."""
    if problem := name_problem(name):
        raise UserError(f"{source}: {problem}, got {shown(name)}{advice and f'; {advice}'}")
    if name.lower() in _RESERVED or name.lower().startswith(_RESERVED_STARTS):
        instead = advice or "choose another name"
        raise UserError(
            f"{source}: {shown(name)} is a folder that cudt itself writes to; {instead}"
        )
    return name


def name_of_file(path: Path, values: dict[str, Any]) -> str:
    """The name that is removed from the values of a file; that of the file if they have none."""
    if "name" in values:
        return checked_name(values.pop("name"), f"{path}: name")
    return checked_name(
        path.stem, f"{path}: the name of the file", "rename the file, or set `name:` in it"
    )


def name_problem(name: Any) -> str:
    """What is wrong with a name, reserved ones apart; empty if nothing is."""
    if not isinstance(name, str) or not _ALLOWED.fullmatch(_without_marks(name)):
        return f"expected a name of {_IN_WORDS}"
    if len(name.encode()) > _LONGEST:
        return f"expected a name of at most {_LONGEST} bytes"
    return ""


def _without_marks(name: str) -> str:
    """A name without the marks that belong to a letter: accents, as Macs write them, and the vowel
    signs of Hindi.
    """
    kept, belongs = [], False
    for one in name:
        kind = unicodedata.category(one)[0]
        if kind != "M" or not belongs:
            kept.append(one)
            belongs = kind == "L"
    return "".join(kept)
