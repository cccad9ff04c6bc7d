"""Files that killed commands left half written, where nobody writes any more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.scope import Scope
from cudt.utils import temporaries
from cudt.utils.files import cache_folder, delete
from cudt.utils.walk import entries_below

#: What earlier versions of cudt called them: the name of a file of a run, and eight letters that do not say who writes.
_EARLIER = re.compile(
    r"\.(run\.json|recipe\.yaml|evaluation\.json|\w+\.csv|examples\.parquet|"
    r"(best|last|step-\d+)\.safetensors|last\.pt|saving)\.[a-z0-9_]{8}"
)


def check(scope: Scope) -> Iterator[Diagnosis]:
    """Temporaries of dead processes below the folders with runs and the cache."""
    for folder in (*scope.folders, cache_folder()):
        if left := temporaries.abandoned(folder, below=True):
            yield _diagnosis(folder, left, partial(temporaries.delete_abandoned, folder, below=True))
    from cudt.runs.find import find_runs

    for run in find_runs([folder for folder in scope.folders if folder.is_dir()]):
        if left := _of_earlier_versions(run):
            yield _diagnosis(run, left, partial(_delete_of_earlier_versions, run))


def _diagnosis(folder: Path, left: Sequence[Path], remove: partial[None]) -> Diagnosis:
    several = "1 temporary file" if len(left) == 1 else f"{len(left)} temporary files"
    size = sum(map(_size, left)) / 2**20

    def fix() -> str:
        remove()
        return f"deleted {several}"

    title = f"{folder}: {several} of commands that were killed ({size:.1f} MB), such as {left[0].name}"
    return Diagnosis("warning", title, "delete them", fix)


def _size(path: Path) -> int:
    try:
        inside = [entry.stat() for entry in entries_below(path) if entry.is_file(follow_symlinks=False)]
        return sum(found.st_size for found in (inside if path.is_dir() else [path.stat()]))
    except OSError:  # another command deletes it
        return 0


def _of_earlier_versions(run: Path) -> list[Path]:
    """Temporaries in a run that no command is using; whoever writes into a run holds its lock."""
    from cudt.doctor.run_lock import is_in_use

    folders = [folder for folder in (run, run / "checkpoints", run / "best", run / "last") if folder.is_dir()]
    left = [path for folder in folders for path in folder.glob(".*") if _EARLIER.fullmatch(path.name)]
    return [] if not left or is_in_use(run) else left


def _delete_of_earlier_versions(run: Path) -> None:
    from cudt.doctor.run_lock import held

    left = _of_earlier_versions(run)
    with held(run):
        for path in left:
            delete(path)


CHECK = Check("Temporary files", 110, check)
