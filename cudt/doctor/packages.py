"""Versions of Python, of cudt, and of what it depends on, against what the packages' own metadata ask for."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from cudt import __version__
from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.scope import Scope

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def check(scope: Scope) -> Iterator[Diagnosis]:
    """Dependencies that are missing or of another version than cudt asks for, or than they ask of each other."""
    python = platform.python_version()
    try:
        installed = metadata.metadata("cudt")
    except metadata.PackageNotFoundError:
        yield Diagnosis(
            "warning",
            f"cudt {__version__} runs from its source folder with Python {python}; what it depends on is unknown",
            "install it: `pip install -e .` in that folder",
        )
        return
    yield from _python(python, installed["Requires-Python"])
    if installed["Version"] != __version__:
        yield Diagnosis(
            "warning",
            f"cudt {__version__} runs, but version {installed['Version']} is installed",
            "install this version: `pip install -e .` in its folder",
        )
    wanted = _requirements("cudt")
    unmet = [(one, reason) for one in wanted if (reason := _reason(one))]
    for one, reason in unmet:
        yield Diagnosis("problem", f"cudt needs {one}: {reason}", f"`pip install {shlex.quote(str(one))}`")
    others = list(_conflicts([one.name for one in wanted]))
    yield from others
    if not unmet and not others:
        yield Diagnosis("ok", f"cudt {__version__} and the {len(wanted)} packages that it needs")


def _python(version: str, wanted: str | None) -> Iterator[Diagnosis]:
    from packaging.specifiers import SpecifierSet

    if wanted and version not in SpecifierSet(wanted, prereleases=True):
        yield Diagnosis(
            "problem",
            f"Python {version}: cudt needs {wanted}",
            "make an environment with another Python, and install cudt there",
        )
    else:
        yield Diagnosis("ok", f"Python {version} at {sys.executable}")


def _conflicts(names: list[str]) -> Iterator[Diagnosis]:
    """What the dependencies ask of each other, like numpy below 2: `pip check`, for the packages that cudt uses."""
    for name in names:
        for one in _requirements(name):
            if (reason := _reason(one)) and reason != _MISSING:
                title = f"{name} {metadata.version(name)} needs {one}: {reason}"
                yield Diagnosis("warning", title, f"`pip install --upgrade {shlex.quote(name)}`")


_MISSING = "it is not installed"


def _requirements(name: str) -> list[Requirement]:
    """What an installed package needs on this machine, without extras."""
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    found = [Requirement(line) for line in lines]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def _reason(wanted: Requirement) -> str:
    """Why a requirement is not met; empty if it is."""
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return _MISSING
    return "" if wanted.specifier.contains(version, prereleases=True) else f"version {version} is installed"


CHECK = Check("Packages", 10, check)
