"""The data root, the data sets in it, and the hub that has the others."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.scope import Scope


def check(scope: Scope) -> Iterator[Diagnosis]:
    """Which data sets are available, and whether others can be downloaded."""
    root = scope.data_root
    if root is not None and not root.is_dir():
        yield Diagnosis(
            "problem",
            f"data root {root} does not exist",
            "give the folder that holds the data sets with --data-root or CUDT_DATA_ROOT",
        )
        return
    if root is not None and not os.access(root, os.R_OK | os.X_OK):
        yield Diagnosis("problem", f"data root {root} cannot be read", "change its permissions, or give another folder")
        return
    yield from _available(scope)
    yield _hub()


def _available(scope: Scope) -> Iterator[Diagnosis]:
    from cudt.tasks import datasets

    found = datasets.find(scope.data_root)
    complete = [one.name for one in found if not one.problem]
    if complete:
        yield Diagnosis("ok", f"available: {', '.join(complete)}")
    for one in found:
        if one.problem and one.parts:
            yield Diagnosis("warning", f"{one.name} is incomplete in {one.folder}", one.problem)
    absent = [one.name for one in found if one.problem and not one.parts]
    if absent:
        yield Diagnosis("note", f"not on this machine: {', '.join(absent)}", "`cudt data` says where to get them")


def _hub() -> Diagnosis:
    from huggingface_hub import constants

    from cudt.data import hub

    if constants.HF_HUB_OFFLINE:
        return Diagnosis("note", "downloads are off (HF_HUB_OFFLINE)", "unset it to download models and data sets")
    if hub.is_reachable():
        return Diagnosis("ok", f"the hub answers ({constants.ENDPOINT})")
    return Diagnosis(
        "note",
        f"the hub does not answer within two seconds ({constants.ENDPOINT})",
        "models and data sets must be on this machine; behind a proxy, set HTTPS_PROXY",
    )


CHECK = Check("Data", 50, check)
