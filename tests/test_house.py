"""The house as docs/contributing.md draws it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def rows() -> dict[str, int]:
    """In which row of the table each file or folder stands."""
    lines = [line for line in (ROOT / "docs/contributing.md").read_text().splitlines() if line.startswith("| `")]
    names = ((number, name) for number, line in enumerate(lines) for name in re.findall(r"`(\w+)", line.split("|")[1]))
    return {name: number for number, name in names}


def imported(path: Path) -> set[str]:
    """The files and folders of cudt that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "cudt":
            found |= {name.name for name in node.names if not name.name.startswith("_")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cudt."):
            found.add(str(node.module).split(".")[1])
    return found


def test_every_file_is_in_the_table_and_imports_what_stands_in_its_row_or_above():
    table = rows()
    for path in (ROOT / "cudt").rglob("*.py"):
        name = path.relative_to(ROOT / "cudt").parts[0].removesuffix(".py")
        if name.startswith("_"):
            continue
        assert name in table
        below = {other for other in imported(path) if table[other] > table[name]}
        assert not below, f"{name} imports {below}"
