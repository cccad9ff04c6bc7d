"""The sweeps below the folders: their databases, and trials whose worker is gone."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from cudt.doctor.diagnosis import Check, Diagnosis, reason_of
from cudt.doctor.scope import Scope
from cudt.utils.errors import UserError
from cudt.utils.walk import files_below

_DATABASE = "study.db"
#: Seconds to wait for a worker that is writing.
_PATIENCE = 2.0
#: Seconds after which a query is given up.
_LONGEST = 20.0
_RUNNING = """
    SELECT value_json FROM trials JOIN trial_user_attributes USING (trial_id)
    WHERE state = 'RUNNING' AND "key" = 'holder'
"""


def check(scope: Scope) -> Iterator[Diagnosis]:
    """What is wrong with each sweep."""
    from cudt.sweep.info import FILE

    found = sorted({file.parent for folder in scope.folders for file in files_below(folder, [FILE, _DATABASE])})
    n_good = 0
    for folder in found:
        problems = _problems(folder)
        n_good += not problems
        yield from problems
    if found:
        yield Diagnosis("ok", f"{n_good} of {len(found)} sweep{'' if len(found) == 1 else 's'} in order")


def _problems(folder: Path) -> list[Diagnosis]:
    try:
        return list(_examine(folder))
    except Exception as error:  # the files may be anybody's, and the other sweeps are checked
        return [Diagnosis("problem", f"{folder}: cannot be checked ({reason_of(error)})", "restore it from a backup")]


def _examine(folder: Path) -> Iterator[Diagnosis]:
    from cudt.runs import checksums
    from cudt.sweep.info import FILE, read_info

    command = "the command that started the sweep"
    damaged = checksums.damaged_files(folder)
    for error in damaged:
        yield Diagnosis("problem", f"{error.path}: damaged ({error.reason})", error.advice)
    # A sweep that has only just begun has none.
    if (folder / FILE).is_file():
        try:
            command = f"`{read_info(folder).command}`"
        except UserError as error:
            if not damaged:
                yield Diagnosis("problem", str(error))
    if (folder / _DATABASE).is_file():
        yield from _database(folder / _DATABASE, command)


def _database(file: Path, command: str) -> Iterator[Diagnosis]:
    """Whether SQLite can read a database, and which of its trials nobody runs."""
    from cudt.sweep.holder import is_dead

    try:
        # Not read-only: SQLite completes or undoes what a killed process has begun, as it does for the next worker.
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=_PATIENCE)) as database:
            # A database of somebody else may have a view without an end.
            end = time.monotonic() + _LONGEST
            database.set_progress_handler(lambda: time.monotonic() > end, 100_000)
            (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                raise sqlite3.DatabaseError(answer)
            lost = sum(is_dead(holder) for (value,) in database.execute(_RUNNING) if (holder := json.loads(value)))
    except (sqlite3.Error, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        # A worker is writing, so the database is in use and in order.
        if "locked" not in str(error):
            yield _damaged(file, reason_of(error), command)
        return
    if lost:
        trials = "1 trial belongs to a worker that is" if lost == 1 else f"{lost} trials belong to workers that are"
        yield Diagnosis("warning", f"{file.parent}: {trials} gone", f"resume: {command}")


def _damaged(file: Path, reason: str, command: str) -> Diagnosis:
    return Diagnosis(
        "problem",
        f"{file}: damaged ({reason})",
        f"restore it; or delete it and repeat {command}, which keeps finished runs and trains what is missing",
    )


CHECK = Check("Sweeps", 90, check)
