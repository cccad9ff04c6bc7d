"""report.json: the files a report wrote, so that the next report into the same folder removes stale
ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from cudt.utils.files import write_text
from cudt.utils.reading import ContentError, sealed, unsealed

_NAME = "report.json"
#: The folders in which file names depend on the runs.
_FOLDERS = ("tables", "figures")


def replace(out: Path, written: Iterable[Path]) -> list[str]:
    """Record the files written now; remove those that the previous report recorded and this one did
    not write.

    Returns a warning if the record of the previous report is damaged: its files stay.
    """
    now = sorted({path.relative_to(out).as_posix() for path in written})
    before, warnings = _recorded(out)
    for name in before:
        if name not in now and (out / name).is_file():
            (out / name).unlink()
    write_text(out / _NAME, json.dumps(json.loads(sealed({"files": now})), indent=2) + "\n")
    return warnings


def _recorded(out: Path) -> tuple[list[str], list[str]]:
    """The files of the previous report; none, with a warning, if report.json is damaged or another
    program's.
    """
    try:
        names = unsealed((out / _NAME).read_bytes()).get("files")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ContentError("not a list of files")
    except FileNotFoundError:
        return [], []
    except (ContentError, OSError) as error:
        return [], [
            f"{out / _NAME}: damaged ({error}); it is written again, and what only the previous "
            "report had in tables/ "
            "and figures/ was not deleted"
        ]
    return [name for name in names if _is_ours(Path(name))], []


def _is_ours(name: Path) -> bool:
    return len(name.parts) == 2 and name.parts[0] in _FOLDERS and name.parts[1] != ".."
