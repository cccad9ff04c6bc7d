"""The runs below the folders: damaged files, checkpoints, and runs that nobody trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cudt.doctor.diagnosis import Check, Diagnosis, reason_of
from cudt.doctor.scope import Scope
from cudt.utils.errors import DamagedFileError

_UNREADABLE = "check its permissions and its disk; a folder of a newer version of cudt needs that version"


def check(scope: Scope) -> Iterator[Diagnosis]:
    """What is wrong with each run that no command is using."""
    from cudt.doctor.run_lock import is_in_use
    from cudt.runs.find import find_runs

    for folder in scope.folders:
        if not folder.is_dir():
            yield Diagnosis("note", f"there are no runs to check: {folder} does not exist yet")
    paths = find_runs([folder for folder in scope.folders if folder.is_dir()])
    # As they are found: a fix comes after the check.
    counts: Counter[str] = Counter()
    for path in scope.track(paths, len(paths), "checking runs"):
        status, found = _examine(path)
        # A command may have begun to write meanwhile.
        if is_in_use(path):
            status, found = "in use", []
        counts["damaged" if any(one.severity == "problem" for one in found) else status] += 1
        yield from found
    if paths:
        what = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
        yield Diagnosis(
            "note" if counts["damaged"] else "ok", f"{len(paths)} run{'' if len(paths) == 1 else 's'}: {what}"
        )


def _examine(path: Path) -> tuple[str, list[Diagnosis]]:
    """The status of a run, and what is wrong with it."""
    from cudt.doctor import run_checkpoints, run_files, run_lock, run_state
    from cudt.runs.info import read_info

    found: list[Diagnosis] = []
    try:
        if run_lock.is_in_use(path):
            return "in use", []
        found += run_files.check(path)
        info = read_info(path)
        found += [*run_checkpoints.check(path), *run_state.check(path, info)]
        return info.status or "not started", found
    except DamagedFileError:
        # run.json, which is among the damaged files.
        return "damaged", found
    except Exception as error:  # the files may be anybody's, and the other runs are checked
        return "unreadable", [
            *found,
            Diagnosis("problem", f"{path}: cannot be checked ({reason_of(error)})", _UNREADABLE),
        ]


CHECK = Check("Runs", 80, check)
