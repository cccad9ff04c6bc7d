"""Which files a report wrote, so that the next one into the same folder takes away those that it does not write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from cudt.utils.files import write_text

_NAME = "report.json"
#: Where the names of files depend on the runs.
_FOLDERS = ("tables", "figures")


def replace(out: Path, written: Iterable[Path]) -> None:
    """Note what is written now, and remove what an earlier report noted and this one has not; nothing else."""
    now = sorted({path.relative_to(out).as_posix() for path in written})
    for name in _noted(out):
        if name not in now and (out / name).is_file():
            (out / name).unlink()
    write_text(out / _NAME, json.dumps({"files": now}, indent=2) + "\n")


def _noted(out: Path) -> list[str]:
    """The files of the report that was there; none where its note is missing, damaged or someone else's."""
    try:
        names = json.loads((out / _NAME).read_text(encoding="utf-8"))["files"]
        return [name for name in names if _is_ours(Path(name))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_ours(name: Path) -> bool:
    return len(name.parts) == 2 and name.parts[0] in _FOLDERS and name.parts[1] != ".."
