"""report.json: the files a report wrote, so that the next report into the same folder removes stale ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from cudt.utils.files import write_text

_NAME = "report.json"
#: The folders in which file names depend on the runs.
_FOLDERS = ("tables", "figures")


def replace(out: Path, written: Iterable[Path]) -> None:
    """Record the files written now; remove those that the previous report recorded and this one did not write."""
    now = sorted({path.relative_to(out).as_posix() for path in written})
    for name in _recorded(out):
        if name not in now and (out / name).is_file():
            (out / name).unlink()
    write_text(out / _NAME, json.dumps({"files": now}, indent=2) + "\n")


def _recorded(out: Path) -> list[str]:
    """The files of the previous report; none if report.json is missing, damaged or another program's."""
    try:
        names = json.loads((out / _NAME).read_text(encoding="utf-8"))["files"]
        return [name for name in names if _is_ours(Path(name))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_ours(name: Path) -> bool:
    return len(name.parts) == 2 and name.parts[0] in _FOLDERS and name.parts[1] != ".."
