"""The house as docs/extend.md draws it: rooms, the order of imports, and the size of things."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cudt"
#: From the top of the house to the bottom: a room imports only from itself and from rooms above it.
ROOMS = (
    *("utils", "config", "method", "noise", "data", "tasks", "models", "runs", "training"),
    *("evaluation", "sweep", "report", "reproduce", "integrations", "cli"),
)
FILES = sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """The room and the dotted name of everything that a file imports from cudt, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cudt":
            for name in node.names:
                dotted = f"{node.module}.{name.name}".split(".")[1:]
                yield dotted[0], ".".join(dotted)
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("cudt."):
                    dotted = name.name.split(".")[1:]
                    yield dotted[0], ".".join(dotted)


def test_every_folder_is_a_room():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert folders | files == set(ROOMS)


def test_a_room_imports_from_rooms_above_it_and_nothing_private():
    for path in FILES:
        mine = room_of(path)
        for room, name in imports(path):
            if room in ROOMS:
                assert ROOMS.index(room) <= ROOMS.index(mine), f"{path} imports {name}"
                private = any(part.startswith("_") for part in name.split("."))
                assert room == mine or not private, f"{path} imports {name}, which is private"


def test_functions_have_at_most_sixty_lines_and_files_six_hundred():
    for path in sorted([*PACKAGE.rglob("*.py"), *(ROOT / "scripts").glob("*.py")]):
        text = path.read_text()
        assert len(text.splitlines()) <= 600, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno <= 60, f"{path}: {node.name}"
