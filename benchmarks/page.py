"""Tables that a script writes into a page of the documentation, between two marks."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path


def put_into(page: Path, name: str, content: str) -> None:
    """Replace what is between the lines <!-- name --> and <!-- /name --> of a page."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    text, count = marked.subn(lambda found: f"{found[1]}{content}{found[2]}", page.read_text(encoding="utf-8"))
    if not count:
        raise SystemExit(f"{page}: no lines <!-- {name} --> and <!-- /{name} --> to write the table between")
    page.write_text(text, encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def measured_on(*packages: str) -> str:
    """One line about the machine and the versions of packages."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    return f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, {versions}."
