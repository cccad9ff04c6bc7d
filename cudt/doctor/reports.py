"""The reports below the folders: whether the files that they list are there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.scope import Scope
from cudt.utils.walk import files_below


def check(scope: Scope) -> Iterator[Diagnosis]:
    """Reports that have lost files."""
    files = [file for folder in scope.folders for file in files_below(folder, ["report.json"])]
    for file in files:
        from cudt.report import manifest

        if lost := manifest.missing(file.parent):
            several = f"{len(lost)} files of the report are missing, such as"
            title = f"{file.parent}: {several if len(lost) > 1 else '1 file of the report is missing:'} {lost[0]}"
            yield Diagnosis("warning", title, f"repeat `cudt report … --out {shlex.quote(str(file.parent))}`")
    if files:
        yield Diagnosis("ok", f"{len(files)} report{'' if len(files) == 1 else 's'} checked")


CHECK = Check("Reports", 100, check)
